from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from repro_env.cli import app
from repro_env.runs.records import ids, records
from repro_env.schema.errors import RecordError, UsageError
from tests.runs.records.examples import recorded, start


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs: a finished run with an output, and a newer run that was interrupted."""
    directory = recorded(tmp_path / "runs", 1)
    (directory / "files" / "b").write_text("b")
    recorded(tmp_path / "runs", 2, over=False)
    return tmp_path / "runs"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["runs", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_shows_the_newest_run_first_and_warns_about_damaged_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = recorded(runs, 3)
    (damaged / "start.json").unlink()
    code, out, err = call(capsys, "list", "--runs", str(runs))
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "00000002", "00000001"]
    assert "interrupted" in lines[1]
    assert "exit 0" in lines[2]
    assert "cannot be read" in err
    assert damaged.name in err
    assert f"next: repro-env runs show 00000002 --runs {runs}" in err


def test_list_prints_the_runs_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "list", "--runs", str(runs), "--json")
    answer = json.loads(out)
    assert [(run["short"], run["state"], run["ending"]) for run in answer["runs"]] == [
        ("00000002", "interrupted", "interrupted"),
        ("00000001", "done", "exit 0"),
    ]
    assert answer["unreadable"] == []


def test_list_suggests_exec_if_there_are_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "list", "--runs", str(tmp_path / "none"))
    assert (code, out) == (0, "")
    assert "repro-env exec" in err


def test_list_suggests_the_complete_list_if_no_run_has_the_tag(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "list", "--tag", "none", "--runs", str(runs))
    assert (code, out) == (0, "")
    assert f"no runs with these tags in {runs}; next: repro-env runs list --runs {runs}\n" in err


def test_show_prints_a_page_or_the_record_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "show", "00000001", "--runs", str(runs))
    assert "command   train.py" in out
    assert "state     exit 0 after 1.0 s" in out
    _, out, _ = call(capsys, "show", "--runs", str(runs), "--json")
    assert json.loads(out)["state"] == "interrupted"
    assert json.loads(out)["end"] is None


def test_show_prints_the_memory_of_the_machine_with_a_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, records.name_of(datetime.now(timezone.utc), ["train.py"], run_id))
    host = ("os Debian", "cores 2", "memory 25000000000")
    recording.start(msgspec.structs.replace(start(run_id), host=host))
    recording.close()
    _, out, _ = call(capsys, "show", "--runs", str(tmp_path))
    assert "host      os Debian\n          cores 2\n          memory 25.0 GB\n" in out


def test_get_copies_an_output_and_rm_removes_runs(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "get", "00000001", "b", "--to", str(tmp_path / "to"), "--runs", str(runs))
    assert (code, out) == (0, f"{tmp_path}/to/b\n")
    assert (tmp_path / "to" / "b").read_text() == "b"
    _, out, _ = call(capsys, "rm", "latest", "00000001", "--runs", str(runs), "--json")
    assert len(json.loads(out)["removed"]) == 2
    assert list(runs.iterdir()) == []


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    code, out, _ = call(capsys, *words)
    assert code == 0
    return out


def test_show_prints_notes_decisions_and_tags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    option = ("--runs", str(tmp_path / "runs"))
    out = answer(capsys, "note", "latest", "loss", "jumps", "at 7", *option)
    assert out.startswith(f"added a note to {directory.name} at ")
    answer(capsys, "note", "00000001", "use this run\nfor the paper", "--decision", "--by", "ann", *option)
    assert answer(capsys, "tag", "latest", "best", "paper/v1", *option) == f"{directory.name}: best, paper/v1\n"
    remaining = json.loads(answer(capsys, "untag", "latest", "best", "--json", *option))
    assert remaining == {"run": directory.name, "tags": ["paper/v1"]}
    page = answer(capsys, "show", *option)
    assert "tags      paper/v1\n" in page
    assert "  loss jumps at 7\n" in page
    assert "(ann)\n  use this run\n  for the paper\n" in page
    shown = json.loads(answer(capsys, "show", "--json", *option))
    assert shown["tags"] == ["paper/v1"]
    assert [annotation["kind"] for annotation in shown["annotations"]] == ["note", "decision", "tag", "tag", "untag"]


def test_tag_writes_nothing_for_an_existing_or_an_invalid_tag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    option = ("--runs", str(tmp_path / "runs"))
    answer(capsys, "tag", "latest", "a", "a", *option)
    answer(capsys, "tag", "latest", "a", *option)
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
    assert "TAGS" not in answer(capsys, "list", *option)
    answer(capsys, "tag", "00000001", "a", "b", *option)
    answer(capsys, "tag", "00000002", "a", *option)
    lines = answer(capsys, "list", *option).splitlines()
    assert [line.split("  ")[-1] for line in lines] == ["TAGS", "1 (1 B)", "a", "a, b"]
    selected = json.loads(answer(capsys, "list", "--tag", "a", "--tag", "b", "--json", *option))
    assert [(run["short"], run["tags"]) for run in selected["runs"]] == [("00000001", ["a", "b"])]
    assert answer(capsys, "list", "--tag", "none", *option) == ""


def test_list_warns_about_tags_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = recorded(tmp_path / "runs", 1)
    option = ("--runs", str(tmp_path / "runs"))
    answer(capsys, "tag", "latest", "a", *option)
    path = next((directory / "annotations").iterdir())
    path.chmod(0o644)
    path.write_text("{")
    assert app.run(["runs", "list", *option]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].split()[-1] == "?"
    assert f"the notes and tags of {directory} cannot be read" in captured.err
