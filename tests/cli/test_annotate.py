from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.cli import app
from repro_env.model.errors import RecordError, UsageError
from tests.catalog.test_records import recorded


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert app.run(["runs", *words]) == 0
    return capsys.readouterr().out


def test_notes_decisions_and_tags_are_on_the_runs_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path / "runs", 1)
    at = ("--runs", str(tmp_path / "runs"))
    out = call(capsys, "note", "latest", "loss", "jumps", "at 7", *at)
    assert out.startswith(f"note of {folder.name}, ")
    call(capsys, "note", "00000001", "use this one\nfor the paper", "--decision", "--by", "ann", *at)
    assert call(capsys, "tag", "latest", "best", "paper/v1", *at) == f"{folder.name}: best, paper/v1\n"
    assert json.loads(call(capsys, "untag", "latest", "best", "--json", *at)) == {"run": folder.name, "tags": ["paper/v1"]}
    page = call(capsys, "show", *at)
    assert "tags      paper/v1\n" in page
    assert "  loss jumps at 7\n" in page
    assert "(ann)\n  use this one\n  for the paper\n" in page
    shown = json.loads(call(capsys, "show", "--json", *at))
    assert shown["tags"] == ["paper/v1"]
    assert [one["kind"] for one in shown["annotations"]] == ["note", "decision", "tag", "tag", "untag"]


def test_a_tag_twice_says_nothing_new_and_a_bad_one_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path / "runs", 1)
    at = ("--runs", str(tmp_path / "runs"))
    call(capsys, "tag", "latest", "a", "a", *at)
    call(capsys, "tag", "latest", "a", *at)
    assert len(list((folder / "annotations").iterdir())) == 1
    with pytest.raises(UsageError):
        app.run(["runs", "tag", "latest", "b", "no tag", *at])
    with pytest.raises(RecordError) as caught:
        app.run(["runs", "untag", "latest", "a", "b", *at])
    assert caught.value.hint == "it has a"
    assert len(list((folder / "annotations").iterdir())) == 1
    with pytest.raises(RecordError):
        app.run(["runs", "note", "00000009", "x", *at])


def test_the_list_shows_tags_and_picks_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2, 3):
        recorded(runs, number)
    at = ("--runs", str(runs))
    assert "TAGS" not in call(capsys, "list", *at)
    call(capsys, "tag", "00000001", "a", "b", *at)
    call(capsys, "tag", "00000002", "a", *at)
    lines = call(capsys, "list", *at).splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["TAGS", "1 (1 B)", "a", "a, b"]
    picked = json.loads(call(capsys, "list", "--tag", "a", "--tag", "b", "--json", *at))
    assert [(one["short"], one["tags"]) for one in picked["runs"]] == [("00000001", ["a", "b"])]
    assert call(capsys, "list", "--tag", "none", *at) == ""


def test_tags_that_cannot_be_read_are_not_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = recorded(tmp_path / "runs", 1)
    at = ("--runs", str(tmp_path / "runs"))
    call(capsys, "tag", "latest", "a", *at)
    path = next((folder / "annotations").iterdir())
    path.chmod(0o644)
    path.write_text("{")
    assert app.run(["runs", "list", *at]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].split()[-1] == "?"
    assert "its notes and tags cannot be read" in captured.err
