"""SQLite databases: their rows and schema are compared, not their pages."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import sys
from pathlib import Path

import pytest

from repro_env.compare.outputs.tensors import Answer
from tests.fakes import databases
from tests.fakes.looks import changes, look

PLAIN = """
CREATE TABLE scores (step INTEGER, loss REAL, note TEXT, raw BLOB);
INSERT INTO scores VALUES (1, 0.5, 'a', x'00ff'), (2, 0.25, NULL, NULL);
CREATE TABLE names (name TEXT PRIMARY KEY, number INT) WITHOUT ROWID;
INSERT INTO names VALUES ('b', 2), ('a', 1);
CREATE TABLE "odd ""name" (rowid TEXT, "a.b" INT);
INSERT INTO "odd ""name" VALUES ('z', 1), ('y', 2);
CREATE INDEX by_step ON scores (step);
CREATE VIEW best AS SELECT min(loss) FROM scores;
PRAGMA user_version = 3;
"""


def compare(tmp_path: Path, left: str, right: str) -> Answer:
    return look(tmp_path, ".db", databases.made(left), databases.made(right))


def test_equal_rows_on_different_pages_are_equal(tmp_path: Path) -> None:
    other = f"{PLAIN}CREATE TABLE gone (x); INSERT INTO gone VALUES (zeroblob(20000)); DROP TABLE gone;"
    assert databases.made(PLAIN) != databases.made(other)
    assert changes(compare(tmp_path, PLAIN, other)) == []


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("0.25", "0.75", "scores.1.loss"),
        ("(1, 0.5, 'a'", "(1, 0.5, 'b'", "scores.0.note"),
        ("(1, 0.5, 'a'", "(1, '0.5x', 'a'", "scores.0.loss"),
        ("x'00ff'", "x'00fe'", "scores.0.raw"),
        ("x'00ff'", "'a'", "scores.0.raw"),
        ("NULL, NULL", "'', NULL", "scores.1.note"),
        (", (2, 0.25, NULL, NULL)", "", "scores.1.step"),
        ("('b', 2)", "('c', 2)", "names.1.name"),
        ("('z', 1)", "('x', 1)", 'odd "name.0.rowid'),
        ("step INTEGER", "step TEXT", "scores (table)"),
        ("raw BLOB", "raw", "scores (table)"),
        ("loss REAL", "loss REAL NOT NULL", "scores (table)"),
        ("loss REAL", "loss REAL DEFAULT 1", "scores (table)"),
        ("raw BLOB", "raw BLOB, CHECK (loss < 1)", "scores (table)"),
        ("number INT", "number INT REFERENCES scores", "names (table)"),
        ("ON scores (step)", "ON scores (loss)", "by_step (index)"),
        ("min(loss)", "max(loss)", "best (view)"),
        ("user_version = 3", "user_version = 4", "(user_version)"),
        ("user_version = 3", "user_version = 3; PRAGMA application_id = 7", "(application_id)"),
        ("CREATE INDEX", "CREATE TABLE more (x); CREATE INDEX", "more"),
        ("(1, 0.5, 'a', x'00ff'), (2, 0.25, NULL, NULL)", "(2, 0.25, NULL, NULL), (1, 0.5, 'a', x'00ff')", "scores.0.step"),
    ],
)
def test_a_difference_is_named_by_its_place(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in PLAIN
    assert named in changes(compare(tmp_path, PLAIN, PLAIN.replace(old, new)))


def test_the_order_of_constraints_is_a_separate_value(tmp_path: Path) -> None:
    """Libraries write constraints in the order of a set."""
    sql = "CREATE TABLE t (\n  a INT,\n  b INT,\n  {}\n  {}\n)"
    left, right = sql.format("CHECK (a > 1),", "CHECK (b > 1)"), sql.format("CHECK (b > 1),", "CHECK (a > 1)")
    assert changes(compare(tmp_path, left, right)) == ["t (table) (order)"]


def test_tables_in_both_databases_are_named(tmp_path: Path) -> None:
    found = compare(tmp_path, PLAIN, PLAIN.replace("CREATE INDEX", "CREATE TABLE more (x); CREATE INDEX"))
    assert found.names == ("best", "by_step", "names", 'odd "name', "scores")


def test_views_triggers_and_virtual_tables_are_compared_by_their_sql(tmp_path: Path) -> None:
    sql = f"""{PLAIN}
CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM scores; END;
CREATE VIEW endless AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c;
CREATE VIRTUAL TABLE words USING fts4(text);
INSERT INTO words VALUES ('one two');
"""
    assert changes(compare(tmp_path, sql, f"{sql}CREATE TABLE gone (x); DROP TABLE gone; VACUUM;")) == []
    assert changes(compare(tmp_path, sql, sql.replace("one two", "one too")))
    assert changes(compare(tmp_path, sql, sql.replace("x + 1", "x + 2"))) == ["endless (view)"]
    assert changes(compare(tmp_path, sql, sql.replace("DELETE FROM scores", "DELETE FROM names"))) == ["t (trigger)"]


def test_a_text_that_is_not_utf8_is_compared(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (x); INSERT INTO t VALUES (CAST(x'{}' AS TEXT));"
    assert changes(compare(tmp_path, sql.format("61ff"), sql.format("61ff") + "VACUUM;")) == []
    assert changes(compare(tmp_path, sql.format("61ff"), sql.format("61fe"))) == ["t.0.x"]


def test_a_table_with_the_sql_of_a_virtual_table_is_damaged(tmp_path: Path) -> None:
    lie = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE VIRTUAL TABLE t USING fts4(x)' WHERE name = 't';"
    sql = f"CREATE TABLE t (x); INSERT INTO t VALUES ({{}}); {lie}"
    assert "virtual" in compare(tmp_path, sql.format(1), sql.format(2)).problem


def test_a_database_in_utf16_is_refused(tmp_path: Path) -> None:
    """SQLite shows an unpaired surrogate as another character, and drops an odd last byte."""
    sql = "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (x); INSERT INTO t VALUES (CAST(x'{}' AS TEXT));"
    assert "UTF-16" in compare(tmp_path, sql.format("610062"), sql.format("610063")).problem


def test_a_text_with_a_null_character_is_compared_in_full(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (x); INSERT INTO t VALUES ('a' || char(0) || '{}');"
    assert changes(compare(tmp_path, sql.format("b"), sql.format("c"))) == ["t.0.x"]


@pytest.mark.parametrize("name", ["(schema)", "(user_version)", "(columns of t)"])
def test_a_table_with_an_unusual_name_is_compared(tmp_path: Path, name: str) -> None:
    sql = f'CREATE TABLE t (x); CREATE TABLE "{name}" (x); INSERT INTO "{name}" VALUES ({{}});'
    assert changes(compare(tmp_path, sql.format(1), sql.format(2))) == [f'"{name}".0.x']


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_a_database_that_was_not_closed_is_refused(tmp_path: Path, end: str) -> None:
    data = databases.made(PLAIN)
    look(tmp_path, ".db", data, data)
    (tmp_path / "right" / f"file ?#%.db{end}").write_bytes(b"x")
    assert f"db{end}" in look(tmp_path, ".db", data, data).problem
    (tmp_path / "right" / f"file ?#%.db{end}").write_bytes(b"")
    assert not look(tmp_path, ".db", data, data).problem


def test_a_python_without_sqlite_gives_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    data = b"SQLite format 3\0"
    assert "no sqlite3" in look(tmp_path, ".db", data, data).problem


def test_a_damaged_database_is_never_equal(tmp_path: Path) -> None:
    """After a random bit is flipped, there is a difference or a problem, unless the rows are equal."""
    data = databases.made(PLAIN)
    generator = random.Random(1)
    problems = 0
    for _ in range(60):
        at = generator.choice([place for place, byte in enumerate(data) if byte])
        other = data[:at] + bytes([data[at] ^ (1 << generator.randrange(8))]) + data[at + 1 :]
        found = look(tmp_path, ".db", data, other)
        problems += bool(found.problem)
        if not changes(found):
            assert rows(tmp_path, data) == rows(tmp_path, other)
    assert problems
    assert "damaged" in look(tmp_path, ".db", data, data[:4096] + bytes(4096) + data[8192:]).problem
    assert look(tmp_path, ".db", data, data[:5000]).problem


def rows(directory: Path, data: bytes) -> list[str]:
    (directory / "rows.db").write_bytes(data)
    with contextlib.closing(sqlite3.connect(directory / "rows.db")) as connection:
        return [line for line in connection.iterdump() if line.startswith("INSERT")]
