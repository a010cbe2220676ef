from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from repro_env.cli import app
from repro_env.runs.records import ids, records
from tests.runs.records.test_records import recorded, start


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
    assert [(run["short"], run["state"], run["exit_code"]) for run in answer["runs"]] == [
        ("00000002", "interrupted", None),
        ("00000001", "done", 0),
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
