"""Looking into SQLite databases: what is in their rows counts, not how they lie in the file."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from repro_env.inside.tensors import pairs
from repro_env.verify import answers, masks
from repro_env.verify.compared import File
from repro_env.verify.tensors import of_tensors
from tests.fakes import databases

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


def compared(tmp_path: Path, left: bytes, right: bytes, *, masked: bool = True) -> dict[str, Any]:
    paths = []
    for name, data in (("left", left), ("right", right)):
        path = tmp_path / f"{name} ?#%.db"
        path.write_bytes(data)
        paths.append(str(path))
    return pairs.compare(paths[0], paths[1], None, masks.NAMES if masked else ())


def told(tmp_path: Path, left: str, right: str, *, masked: bool = True) -> File:
    said = compared(tmp_path, databases.made(left), databases.made(right), masked=masked)
    (answer,) = answers.answers(json.dumps([said]).encode(), 1)
    return of_tensors("a.db", "a.db", "result", answer, masked=masked)


def test_rows_that_are_equal_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    other = f"{PLAIN}CREATE TABLE gone (x); INSERT INTO gone VALUES (zeroblob(20000)); DROP TABLE gone;"
    assert databases.made(PLAIN) != databases.made(other)
    found = told(tmp_path, PLAIN, other)
    assert (found.level, found.apart) == ("bitwise", ("only how it was packed differs",))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("0.25", "0.75", "scores.1.loss"),
        ("(1, 0.5, 'a'", "(1, 0.5, 'b'", "scores.0.note"),
        ("(1, 0.5, 'a'", "(1, '0.5x', 'a'", "scores.0.loss"),
        ("x'00ff'", "x'00fe'", "scores.0.raw"),
        ("x'00ff'", "'a'", "scores.0.raw"),
        ("NULL, NULL", "'', NULL", "scores.1.note"),
        (", (2, 0.25, NULL, NULL)", "", "scores.1"),
        ("('b', 2)", "('c', 2)", "names.1.name"),
        ("('z', 1)", "('x', 1)", 'odd "name.0'),
        ("step INTEGER", "step TEXT", "columns of scores"),
        ("ON scores (step)", "ON scores (loss)", "(schema)"),
        ("min(loss)", "max(loss)", "(schema)"),
        ("user_version = 3", "user_version = 4", "(user_version)"),
        ("CREATE INDEX", "CREATE TABLE more (x); CREATE INDEX", "(columns of more)"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in PLAIN
    found = told(tmp_path, PLAIN, PLAIN.replace(old, new))
    assert found.level == "different"
    assert named in found.why


def test_a_number_that_is_a_little_off_is_numeric(tmp_path: Path) -> None:
    assert told(tmp_path, PLAIN, PLAIN.replace("0.25", "0.25000001")).level == "numeric"


def test_what_a_program_shows_is_not_asked_for(tmp_path: Path) -> None:
    """A view, a trigger, a virtual table: what they are is compared, and none of them runs."""
    sql = f"""{PLAIN}
CREATE TRIGGER t AFTER INSERT ON scores BEGIN DELETE FROM scores; END;
CREATE VIEW endless AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c;
CREATE VIRTUAL TABLE words USING fts4(text);
INSERT INTO words VALUES ('one two');
"""
    assert told(tmp_path, sql, f"{sql}CREATE TABLE gone (x); DROP TABLE gone; VACUUM;").level == "bitwise"
    assert told(tmp_path, sql, sql.replace("one two", "one too")).level == "different"
    assert "(schema)" in told(tmp_path, sql, sql.replace("x + 1", "x + 2")).why


def test_a_text_that_is_no_utf8_is_read(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (x); INSERT INTO t VALUES (CAST(x'{}' AS TEXT));"
    assert told(tmp_path, sql.format("61ff"), sql.format("61ff") + "VACUUM;").level == "bitwise"
    assert told(tmp_path, sql.format("61ff"), sql.format("61fe")).level == "different"


def test_a_table_that_only_says_that_it_is_virtual_is_damaged(tmp_path: Path) -> None:
    lie = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'CREATE VIRTUAL TABLE t USING fts4(x)' WHERE name = 't';"
    sql = f"CREATE TABLE t (x); INSERT INTO t VALUES ({{}}); {lie}"
    assert "virtual" in told(tmp_path, sql.format(1), sql.format(2)).why


def test_one_in_utf16_is_not_looked_into(tmp_path: Path) -> None:
    """SQLite would show a half of a character, and what follows it, as another character, and leave out a last odd byte."""
    sql = "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (x); INSERT INTO t VALUES (CAST(x'{}' AS TEXT));"
    assert "UTF-16" in told(tmp_path, sql.format("610062"), sql.format("610063")).why


def test_a_text_with_a_zero_in_it_is_read_whole(tmp_path: Path) -> None:
    sql = "CREATE TABLE t (x); INSERT INTO t VALUES ('a' || char(0) || '{}');"
    assert told(tmp_path, sql.format("b"), sql.format("c")).level == "different"


@pytest.mark.parametrize("name", ["(schema)", "(user_version)", "(columns of t)"])
def test_a_table_cannot_hide_another(tmp_path: Path, name: str) -> None:
    sql = f'CREATE TABLE t (x); CREATE TABLE "{name}" (x); INSERT INTO "{name}" VALUES ({{}});'
    assert told(tmp_path, sql.format(1), sql.format(2)).level == "different"


@pytest.mark.parametrize("beside", ["-wal", "-journal"])
def test_one_that_was_not_closed_is_not_looked_into(tmp_path: Path, beside: str) -> None:
    data = databases.made(PLAIN)
    (tmp_path / f"right ?#%.db{beside}").write_bytes(b"x")
    assert f"db{beside}" in compared(tmp_path, data, data)["problem"]
    (tmp_path / f"right ?#%.db{beside}").write_bytes(b"")
    assert not compared(tmp_path, data, data)["problem"]


def test_a_python_without_sqlite_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = databases.made(PLAIN)
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    assert "no sqlite3" in compared(tmp_path, data, data)["problem"]


def test_a_damaged_one_is_never_the_same(tmp_path: Path) -> None:
    """A byte of what is used, changed at random: a difference or a reason, unless it says the same of the rows."""
    data = databases.made(PLAIN)
    chosen = random.Random(1)
    reasons = 0
    for _ in range(60):
        at = chosen.choice([place for place, byte in enumerate(data) if byte])
        other = data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :]
        found = compared(tmp_path, data, other)
        reasons += bool(found["problem"])
        if not found["problem"] and not found["other"] and not found["unequal"]:
            assert rows(data) == rows(other)
    assert reasons
    assert "damaged" in compared(tmp_path, data, data[:4096] + bytes(4096) + data[8192:])["problem"]
    assert compared(tmp_path, data, data[:5000])["problem"]


def rows(data: bytes) -> list[str]:
    opened = sqlite3.connect(":memory:")
    opened.deserialize(data)
    return [line for line in opened.iterdump() if line.startswith("INSERT")]


MOMENTS = """
CREATE TABLE trials (number INT, started TEXT, value REAL);
WITH RECURSIVE c(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM c WHERE x < 299)
INSERT INTO trials SELECT x, datetime({}, '+' || x || ' seconds'), x / 7.0 FROM c;
"""


def test_moments_are_told_however_many_there_are(tmp_path: Path) -> None:
    left, right = (MOMENTS.format(f"'2026-07-0{day} 10:00:00'") for day in (1, 2))
    found = told(tmp_path, left, right)
    assert (found.level, found.why) == ("bitwise", "")
    assert found.apart == ("300 values of its rows that say when, or by which random name",)
    assert told(tmp_path, left, right, masked=False).level == "different"
    assert told(tmp_path, left, right.replace("x / 7.0", "x / 7.5")).level == "different"


MLFLOW = """
CREATE TABLE alembic_version (version_num TEXT);
CREATE TABLE experiments (experiment_id INTEGER, artifact_location TEXT);
CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time BIGINT, artifact_uri TEXT);
CREATE TABLE metrics (key TEXT, value REAL, timestamp BIGINT, run_uuid TEXT, step BIGINT);
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE tags (key TEXT, value TEXT, run_uuid TEXT);
INSERT INTO alembic_version VALUES ('one');
INSERT INTO experiments VALUES (1, '/srv/project/mlruns/1');
INSERT INTO runs VALUES ('{id}', '{name}', {now}, '/srv/project/mlruns/1/{id}/artifacts');
INSERT INTO metrics VALUES ('loss', {loss}, {now}, '{id}', {step});
INSERT INTO params VALUES ('data', '{sum}', '{id}'), ('seed', '{seed}', '{id}');
INSERT INTO tags VALUES ('mlflow.runName', '{name}', '{id}'), ('mlflow.note.content', '{note}', '{id}'), ('kind', '{kind}', '{id}');
"""
RUN = {
    "id": "e477ac9a754745a3821702800a9de136",
    "name": "calm-fox-1",
    "now": 1795344171571,
    "loss": 0.5,
    "step": 3,
    "sum": "0cc175b9c0f1b6a831c399e269772661",
    "seed": 1795344171,
    "kind": "x",
    "note": "first try",
}
AGAIN = RUN | {"id": "d5fc9f02b90c405b83059292bb35d261", "name": "bold-shad-934", "now": 1795344179688}


def test_a_run_of_mlflow_has_another_name_and_time(tmp_path: Path) -> None:
    found = told(tmp_path, MLFLOW.format(**RUN), MLFLOW.format(**AGAIN))
    assert (found.level, found.why) == ("bitwise", "")
    assert found.apart == ("12 values of its rows that say when, or by which random name",)


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ({"loss": 0.75}, "metrics.0.value"),
        ({"step": 4}, "metrics.0.step"),
        ({"sum": "92eb5ffee6ae2fec3ad71c777531578f"}, "params.0.value"),
        ({"seed": 1795344172}, "params.1.value"),
        ({"kind": "y"}, "tags.2.value"),
        ({"note": "second try"}, "tags.1.value"),
        ({"id": "mine"}, "metrics.0.run_uuid"),
        ({"now": 5}, "runs.0.start_time"),
    ],
)
def test_what_was_logged_counts(tmp_path: Path, what: dict[str, object], named: str) -> None:
    found = told(tmp_path, MLFLOW.format(**RUN), MLFLOW.format(**(AGAIN | what)))
    assert found.level == "different"
    assert named in found.why


@pytest.mark.parametrize("said", ["a/b.py --seed 179534417{}", "a/run-{} ok"])
def test_a_number_beside_a_path_is_a_result(tmp_path: Path, said: str) -> None:
    left, right = (said.format(digit) for digit in (1, 2))
    found = told(tmp_path, MLFLOW.format(**(RUN | {"sum": left})), MLFLOW.format(**(AGAIN | {"sum": right})))
    assert (found.level, "params.0.value" in found.why) == ("different", True)


SWEEP = """
CREATE TABLE alembic_version (version_num TEXT);
CREATE TABLE experiments (experiment_id INTEGER);
CREATE TABLE metrics (key TEXT, value REAL, run_uuid TEXT);
CREATE TABLE runs (run_uuid TEXT, artifact_uri TEXT);
INSERT INTO alembic_version VALUES ('one');
INSERT INTO experiments VALUES (1);
INSERT INTO metrics VALUES ('loss', 0.5, '{0}'), ('loss', 0.25, '{1}');
INSERT INTO runs VALUES ('{2}', 'runs/{3}/artifacts'), ('{4}', 'runs/{5}/artifacts');
"""


@pytest.mark.parametrize(
    ("order", "level"), [("01 00 11", "bitwise"), ("10 00 11", "different"), ("00 00 11", "different"), ("01 01 10", "different")]
)
def test_a_metric_belongs_to_its_run(tmp_path: Path, order: str, level: str) -> None:
    """Random names are others each time, and still the same where they name the same."""
    sides = []
    for ids, places in (("ab", "010011"), ("cd", order.replace(" ", ""))):
        sides.append(SWEEP.format(*((ids[int(place)] + "1") * 16 for place in places)))
    assert told(tmp_path, *sides).level == level


def test_numbers_of_another_program_are_no_times(tmp_path: Path) -> None:
    sql = "CREATE TABLE metrics (timestamp BIGINT, run_uuid TEXT); INSERT INTO metrics VALUES ({now}, '{id}');"
    found = told(tmp_path, sql.format(**RUN), sql.format(**AGAIN))
    assert found.level == "different"
    assert "run_uuid" in found.why
