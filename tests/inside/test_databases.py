"""Looking into SQLite databases: what is in their rows counts, not how they lie in the file."""

from __future__ import annotations

import random
import sqlite3
import sys
from pathlib import Path

import pytest

from repro_env.verify.answers import Answer
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


def compared(tmp_path: Path, left: str, right: str) -> Answer:
    return look(tmp_path, ".db", databases.made(left), databases.made(right))


def test_rows_that_are_equal_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    other = f"{PLAIN}CREATE TABLE gone (x); INSERT INTO gone VALUES (zeroblob(20000)); DROP TABLE gone;"
    assert databases.made(PLAIN) != databases.made(other)
    assert changes(compared(tmp_path, PLAIN, other)) == []


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
def test_what_differs_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in PLAIN
    assert named in changes(compared(tmp_path, PLAIN, PLAIN.replace(old, new)))


def test_the_order_of_constraints_is_a_value_of_its_own(tmp_path: Path) -> None:
    """Libraries write constraints in the order of a set."""
    sql = "CREATE TABLE t (\n  a INT,\n  b INT,\n  {}\n  {}\n)"
    one, other = sql.format("CHECK (a > 1),", "CHECK (b > 1)"), sql.format("CHECK (b > 1),", "CHECK (a > 1)")
    assert changes(compared(tmp_path, one, other)) == ["t (table) (order)"]


def test_tables_are_named_where_both_have_them(tmp_path: Path) -> None:
    found = compared(tmp_path, PLAIN, PLAIN.replace("CREATE INDEX", "CREATE TABLE more (x); CREATE INDEX"))
    assert found.names == ("best", "by_step", "names", 'odd "name', "scores")


def test_what_a_program_shows_is_not_asked_for(tmp_path: Path) -> None:
    """A view, a trigger, a virtual table: what they are is compared, and none of them runs."""
    sql = f"""{PLAIN}
CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM scores; END;
CREATE VIEW endless AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c;
CREATE VIRTUAL TABLE words USING fts4(text);
INSERT INTO words VALUES ('one two');
"""
    assert changes(compared(tmp_path, sql, f"{sql}CREATE TABLE gone (x); DROP TABLE gone; VACUUM;")) == []
    assert changes(compared(tmp_path, sql, sql.replace("one two", "one too")))
    assert changes(compared(tmp_path, sql, sql.replace("x + 1", "x + 2"))) == ["endless (view)"]
    assert changes(compared(tmp_path, sql, sql.replace("DELETE FROM scores", "DELETE FROM names"))) == ["t (trigger)"]


def test_a_text_that_is_no_utf8_is_read(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (x); INSERT INTO t VALUES (CAST(x'{}' AS TEXT));"
    assert changes(compared(tmp_path, sql.format("61ff"), sql.format("61ff") + "VACUUM;")) == []
    assert changes(compared(tmp_path, sql.format("61ff"), sql.format("61fe"))) == ["t.0.x"]


def test_a_table_that_only_says_that_it_is_virtual_is_damaged(tmp_path: Path) -> None:
    lie = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE VIRTUAL TABLE t USING fts4(x)' WHERE name = 't';"
    sql = f"CREATE TABLE t (x); INSERT INTO t VALUES ({{}}); {lie}"
    assert "virtual" in compared(tmp_path, sql.format(1), sql.format(2)).problem


def test_one_in_utf16_is_not_looked_into(tmp_path: Path) -> None:
    """SQLite would show a half of a character, and what follows it, as another character, and leave out a last odd byte."""
    sql = "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (x); INSERT INTO t VALUES (CAST(x'{}' AS TEXT));"
    assert "UTF-16" in compared(tmp_path, sql.format("610062"), sql.format("610063")).problem


def test_a_text_with_a_zero_in_it_is_read_whole(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (x); INSERT INTO t VALUES ('a' || char(0) || '{}');"
    assert changes(compared(tmp_path, sql.format("b"), sql.format("c"))) == ["t.0.x"]


@pytest.mark.parametrize("name", ["(schema)", "(user_version)", "(columns of t)"])
def test_a_table_cannot_hide_another(tmp_path: Path, name: str) -> None:
    sql = f'CREATE TABLE t (x); CREATE TABLE "{name}" (x); INSERT INTO "{name}" VALUES ({{}});'
    assert changes(compared(tmp_path, sql.format(1), sql.format(2))) == [f"{name}.0.x"]


@pytest.mark.parametrize("beside", ["-wal", "-journal"])
def test_one_that_was_not_closed_is_not_looked_into(tmp_path: Path, beside: str) -> None:
    data = databases.made(PLAIN)
    look(tmp_path, ".db", data, data)
    (tmp_path / "right" / f"file ?#%.db{beside}").write_bytes(b"x")
    assert f"db{beside}" in look(tmp_path, ".db", data, data).problem
    (tmp_path / "right" / f"file ?#%.db{beside}").write_bytes(b"")
    assert not look(tmp_path, ".db", data, data).problem


def test_a_python_without_sqlite_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    data = b"SQLite format 3\0"
    assert "no sqlite3" in look(tmp_path, ".db", data, data).problem


def test_a_damaged_one_is_never_the_same(tmp_path: Path) -> None:
    """A byte of what is used, changed at random: a difference or a reason, unless it says the same of the rows."""
    data = databases.made(PLAIN)
    chosen = random.Random(1)
    reasons = 0
    for _ in range(60):
        at = chosen.choice([place for place, byte in enumerate(data) if byte])
        other = data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :]
        found = look(tmp_path, ".db", data, other)
        reasons += bool(found.problem)
        if not changes(found):
            assert rows(data) == rows(other)
    assert reasons
    assert "damaged" in look(tmp_path, ".db", data, data[:4096] + bytes(4096) + data[8192:]).problem
    assert look(tmp_path, ".db", data, data[:5000]).problem


def rows(data: bytes) -> list[str]:
    opened = sqlite3.connect(":memory:")
    opened.deserialize(data)
    return [line for line in opened.iterdump() if line.startswith("INSERT")]
