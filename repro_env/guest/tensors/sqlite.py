"""SQLite databases, read without running their triggers, views or virtual tables, and without writing any file."""

import os
from typing import Any
from urllib.parse import quote

from .standins import Order, Parts, Row, Text, WithFacts
from .tensor import UnreadableError

MAGIC = b"SQLite f"


def read_database(path: str) -> WithFacts:
    """{table: [{column: value}]}, with rows in the order of their row IDs, and the SQL of tables, indices, views and triggers.

    Raises `UnreadableError` for a database that is damaged, or that has a part in another file.
    """
    try:
        import sqlite3
    except ImportError:
        raise UnreadableError("is an SQLite database, and the environment's Python has no sqlite3") from None
    for journal in (path + "-wal", path + "-journal"):
        if os.path.exists(journal) and os.path.getsize(journal):
            raise UnreadableError("is an SQLite database that was not closed: a part of it is in %s" % os.path.basename(journal))
    connection = sqlite3.connect("file:%s?mode=ro&immutable=1" % quote(os.path.abspath(path)), uri=True)
    try:
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA trusted_schema = OFF")
        return _read(connection)
    except sqlite3.Error as error:
        raise UnreadableError("is not a readable SQLite database: %s" % error) from None
    finally:
        connection.close()


def _read(connection: Any) -> WithFacts:
    ((state,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if state != "ok":
        raise UnreadableError("is a damaged SQLite database: %s" % state)
    if connection.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":  # SQLite shows invalid UTF-16 as other characters
        raise UnreadableError("is an SQLite database in UTF-16, which is not supported")
    facts = {"about " + name: connection.execute("PRAGMA " + name).fetchone()[0] for name in ("user_version", "application_id")}
    entries = connection.execute("SELECT type, name, sql, rootpage FROM sqlite_master ORDER BY type, name, tbl_name").fetchall()
    # A program computes the rows of a virtual table, from ordinary tables that are compared.
    virtual = {name: page for kind, name, sql, page in entries if kind == "table" and sql.upper().startswith("CREATE VIRTUAL")}
    if any(virtual.values()):
        raise UnreadableError("is a damaged SQLite database: a virtual table has rows of its own")
    result = Parts()
    for kind, name, sql, _ in entries:
        lines = [line.strip().rstrip(",") for line in (sql or "").split("\n")]
        # Libraries write constraints in the order of a set: the order of lines is a separate value.
        schema = WithFacts(Text("\n".join(sorted(lines))), {"about order": Order("line " + line for line in lines)})
        rows = Parts()  # type: object
        if kind == "table" and name not in virtual:
            quoted = '"%s"' % name.replace('"', '""')
            columns = [column[1].lower() for column in connection.execute("PRAGMA table_xinfo(%s)" % quoted)]
            rows = _rows(connection, quoted, columns)
        result["key " + name] = WithFacts(rows, {"about %s" % kind: schema})
    return WithFacts(result, facts)


def _rows(connection: Any, quoted: str, columns: "list[str]") -> "list[Row]":
    row_id = next((name for name in ("rowid", "_rowid_", "oid") if name not in columns), "1")
    try:
        cursor = connection.execute("SELECT * FROM %s ORDER BY %s" % (quoted, row_id))
    except connection.OperationalError:  # a table WITHOUT ROWID has the order of its key
        cursor = connection.execute("SELECT * FROM %s" % quoted)
    names = [column[0] for column in cursor.description]
    return [Row(zip(names, row)) for row in cursor]  # noqa: B905
