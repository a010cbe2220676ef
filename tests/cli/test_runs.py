from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from repro_env.catalog import ids, records
from repro_env.cli import app
from tests.catalog.test_records import recorded, start


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs: a finished one with a file, a newer one that was interrupted."""
    folder = recorded(tmp_path / "runs", 1)
    (folder / "files" / "b").write_text("b")
    recorded(tmp_path / "runs", 2, over=False)
    return tmp_path / "runs"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = app.run(["runs", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_list_shows_the_newest_first_and_names_what_it_cannot_read(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = recorded(runs, 3)
    (torn / "start.json").unlink()
    code, out, err = call(capsys, "list", "--runs", str(runs))
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "00000002", "00000001"]
    assert "interrupted" in lines[1]
    assert "exit 0" in lines[2]
    assert "cannot be read" in err
    assert torn.name in err
    assert f"next: repro-env runs show 00000002 --runs {runs}" in err


def test_list_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "list", "--runs", str(runs), "--json")
    found = json.loads(out)
    assert [(one["short"], one["state"], one["exit_code"]) for one in found["runs"]] == [
        ("00000002", "interrupted", None),
        ("00000001", "done", 0),
    ]
    assert found["unreadable"] == []


def test_no_runs_is_an_empty_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "list", "--runs", str(tmp_path / "none"))
    assert (code, out) == (0, "")
    assert "repro-env exec" in err


def test_a_tag_that_no_run_has_leads_back_to_the_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "list", "--tag", "none", "--runs", str(runs))
    assert (code, out) == (0, "")
    assert f"no runs with these tags in {runs}; next: repro-env runs list --runs {runs}\n" in err


def test_show_is_a_page_or_the_record(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "show", "00000001", "--runs", str(runs))
    assert "command   train.py" in out
    assert "state     exit 0 after 1.0 s" in out
    _, out, _ = call(capsys, "show", "--runs", str(runs), "--json")
    assert json.loads(out)["state"] == "interrupted"
    assert json.loads(out)["end"] is None


def test_the_machine_stands_in_the_page_with_its_memory_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = ids.uuid7(1, bytes(10))
    recording = records.begin(tmp_path, records.name_of(datetime.now(timezone.utc), ["train.py"], run_id))
    host = ("os Debian", "cores 2", "memory 25000000000")
    recording.start(msgspec.structs.replace(start(run_id), host=host))
    recording.close()
    _, out, _ = call(capsys, "show", "--runs", str(tmp_path))
    assert "host      os Debian\n          cores 2\n          memory 25.0 GB\n" in out


def test_get_and_rm(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "get", "00000001", "b", "--to", str(tmp_path / "to"), "--runs", str(runs))
    assert (code, out) == (0, f"{tmp_path}/to/b\n")
    assert (tmp_path / "to" / "b").read_text() == "b"
    _, out, _ = call(capsys, "rm", "latest", "00000001", "--runs", str(runs), "--json")
    assert len(json.loads(out)["removed"]) == 2
    assert list(runs.iterdir()) == []
