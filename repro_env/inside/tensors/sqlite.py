"""SQLite databases, read as they are: no program of theirs runs, and nothing is written beside them."""

import os
from typing import Any
from urllib.parse import quote

from .unreadable import UnreadableError

MAGIC = b"SQLite f"
_ROWS = 1000000
"""Rows of one database that are looked at."""


class Database(dict):  # type: ignore[type-arg]
    """{table: [{column: value}]}, rows in the order in which they were inserted, and what was said to make tables, indices and views."""


def database(path: str) -> Database:
    """Raises `UnreadableError` for one that is damaged, or of which a part is in another file."""
    try:
        import sqlite3
    except ImportError:
        raise UnreadableError("is an SQLite database, and the environment's Python has no sqlite3") from None
    for beside in ("-wal", "-journal"):
        if os.path.exists(path + beside) and os.path.getsize(path + beside):
            raise UnreadableError(
                "is an SQLite database that was not closed: a part of it is in %s" % os.path.basename(path + beside)
            )
    opened = sqlite3.connect("file:%s?mode=ro&immutable=1" % quote(os.path.abspath(path)), uri=True)
    try:
        opened.text_factory = _text
        opened.execute("PRAGMA trusted_schema = OFF")
        return _read(opened)
    except sqlite3.Error as error:
        raise UnreadableError("is no SQLite database that can be read: %s" % error) from None
    finally:
        opened.close()


def _read(opened: Any) -> Database:
    ((whole,),) = opened.execute("PRAGMA integrity_check(1)").fetchall()
    if whole != "ok":
        raise UnreadableError("is a damaged SQLite database: %s" % whole)
    if opened.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":  # what is no UTF-16 in it would be shown as something else
        raise UnreadableError("is an SQLite database in UTF-16, which is not read here")
    made = Database()
    for name in ("user_version", "application_id"):
        made["(%s)" % name] = opened.execute("PRAGMA %s" % name).fetchone()[0]
    every = opened.execute("SELECT type, name, sql, rootpage FROM sqlite_master ORDER BY type, name, tbl_name").fetchall()
    said = [one[:3] for one in every]
    # Of a table its columns: libraries write its constraints in the order of a set. What a virtual one shows is made by a program;
    # its own tables are among the others.
    virtual = {name: page for kind, name, sql, page in every if kind == "table" and sql.upper().startswith("CREATE VIRTUAL")}
    if any(virtual.values()):
        raise UnreadableError("is a damaged SQLite database: a virtual table has rows of its own")
    tables = [name for kind, name, _ in said if kind == "table" and name not in virtual]
    made["(schema)"] = ["%s %s: %s" % one for one in said if one[0] != "table" or one[1] not in tables]
    left = [_ROWS]
    for name in tables:
        quoted = '"%s"' % name.replace('"', '""')
        if name in made or "(columns of %s)" % name in made:
            raise UnreadableError("is an SQLite database with a table that is named as what is said of others: %s" % name)
        columns = [one[1:] for one in opened.execute("PRAGMA table_xinfo(%s)" % quoted)]
        made["(columns of %s)" % name] = columns
        made[name] = list(_rows(opened, quoted, [one[0].lower() for one in columns], left))
    return made


def _rows(opened: Any, quoted: str, taken: "list[str]", left: "list[int]") -> Any:
    numbered = next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), "1")
    try:
        found = opened.execute("SELECT * FROM %s ORDER BY %s" % (quoted, numbered))
    except opened.OperationalError:  # a table WITHOUT ROWID is in the order of its key
        found = opened.execute("SELECT * FROM %s" % quoted)
    names = [one[0] for one in found.description]
    for row in found:
        left[0] -= 1
        if left[0] < 0:
            raise UnreadableError("is an SQLite database of more rows than are looked at")
        yield dict(zip(names, row))  # noqa: B905


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
