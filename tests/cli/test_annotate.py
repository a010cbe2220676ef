from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.cli import app
from repro_env.schema.errors import RecordError, UsageError
from tests.runs.records.test_records import recorded


def call(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert app.run(["runs", *words]) == 0
    return capsys.readouterr().out


def test_show_prints_notes_decisions_and_tags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    option = ("--runs", str(tmp_path / "runs"))
    out = call(capsys, "note", "latest", "loss", "jumps", "at 7", *option)
    assert out.startswith(f"added a note to {directory.name} at ")
    call(capsys, "note", "00000001", "use this run\nfor the paper", "--decision", "--by", "ann", *option)
    assert call(capsys, "tag", "latest", "best", "paper/v1", *option) == f"{directory.name}: best, paper/v1\n"
    answer = json.loads(call(capsys, "untag", "latest", "best", "--json", *option))
    assert answer == {"run": directory.name, "tags": ["paper/v1"]}
    page = call(capsys, "show", *option)
    assert "tags      paper/v1\n" in page
    assert "  loss jumps at 7\n" in page
    assert "(ann)\n  use this run\n  for the paper\n" in page
    shown = json.loads(call(capsys, "show", "--json", *option))
    assert shown["tags"] == ["paper/v1"]
    assert [annotation["kind"] for annotation in shown["annotations"]] == ["note", "decision", "tag", "tag", "untag"]


def test_tag_writes_nothing_for_an_existing_or_an_invalid_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    option = ("--runs", str(tmp_path / "runs"))
    call(capsys, "tag", "latest", "a", "a", *option)
    call(capsys, "tag", "latest", "a", *option)
    assert len(list((directory / "annotations").iterdir())) == 1
    with pytest.raises(UsageError):
        app.run(["runs", "tag", "latest", "b", "no tag", *option])
    with pytest.raises(RecordError) as caught:
        app.run(["runs", "untag", "latest", "a", "b", *option])
    assert caught.value.hint == "its tags are a"
    assert len(list((directory / "annotations").iterdir())) == 1
    with pytest.raises(RecordError):
        app.run(["runs", "note", "00000009", "x", *option])


def test_list_shows_tags_and_selects_runs_by_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    for number in (1, 2, 3):
        recorded(runs, number)
    option = ("--runs", str(runs))
    assert "TAGS" not in call(capsys, "list", *option)
    call(capsys, "tag", "00000001", "a", "b", *option)
    call(capsys, "tag", "00000002", "a", *option)
    lines = call(capsys, "list", *option).splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["TAGS", "1 (1 B)", "a", "a, b"]
    selected = json.loads(call(capsys, "list", "--tag", "a", "--tag", "b", "--json", *option))
    assert [(run["short"], run["tags"]) for run in selected["runs"]] == [("00000001", ["a", "b"])]
    assert call(capsys, "list", "--tag", "none", *option) == ""


def test_list_warns_about_tags_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    option = ("--runs", str(tmp_path / "runs"))
    call(capsys, "tag", "latest", "a", *option)
    path = next((directory / "annotations").iterdir())
    path.chmod(0o644)
    path.write_text("{")
    assert app.run(["runs", "list", *option]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].split()[-1] == "?"
    assert f"the notes and tags of {directory} cannot be read" in captured.err
