"""SQLite databases, read as they are: no program of theirs runs, and nothing is written beside them."""

import os
from typing import Any
from urllib.parse import quote

from .standins import Known, Order, Parts, Row, Text
from .unreadable import UnreadableError

MAGIC = b"SQLite f"
_ROWS = 1000000
"""Rows of one database that are looked at."""


def database(path: str) -> Known:
    """{table: [{column: value}]}, rows in the order of their numbers, and the SQL of tables, indices, views and triggers.

    Raises `UnreadableError` for one that is damaged, or of which a part is in another file.
    """
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


def _read(opened: Any) -> Known:
    ((whole,),) = opened.execute("PRAGMA integrity_check(1)").fetchall()
    if whole != "ok":
        raise UnreadableError("is a damaged SQLite database: %s" % whole)
    if opened.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":  # what is no UTF-16 in it would be shown as something else
        raise UnreadableError("is an SQLite database in UTF-16, which is not read here")
    facts = {}  # type: dict[str, object]
    for name in ("user_version", "application_id"):
        facts["about " + name] = opened.execute("PRAGMA %s" % name).fetchone()[0]
    every = opened.execute("SELECT type, name, sql, rootpage FROM sqlite_master ORDER BY type, name, tbl_name").fetchall()
    # What a virtual table shows is made by a program; its own tables are among the others.
    virtual = {name: page for kind, name, sql, page in every if kind == "table" and sql.upper().startswith("CREATE VIRTUAL")}
    if any(virtual.values()):
        raise UnreadableError("is a damaged SQLite database: a virtual table has rows of its own")
    made = {}  # type: dict[str, object]
    left = [_ROWS]
    for kind, name, sql, _ in every:
        lines = [line.strip().rstrip(",") for line in (sql or "").split("\n")]
        # Libraries write constraints in the order of a set: the order of lines is a value of its own.
        said = Known(Text("\n".join(sorted(lines))), {"about order": Order(lines)})
        rows = Parts()  # type: object
        if kind == "table" and name not in virtual:
            quoted = '"%s"' % name.replace('"', '""')
            columns = [one[1].lower() for one in opened.execute("PRAGMA table_xinfo(%s)" % quoted)]
            rows = list(_rows(opened, quoted, columns, left))
        made["key " + name] = Known(rows, {"about %s" % kind: said})
    return Known(Parts(made), facts)


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
        yield Row(zip(names, row))  # noqa: B905


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
