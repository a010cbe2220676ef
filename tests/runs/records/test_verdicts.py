"""Verdicts in the directory of a run."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from repro_env.cli.ui import runpage
from repro_env.runs.records import records, verdicts
from repro_env.schema.errors import RecordError, SpecError, SpecVersionError
from tests.runs.records.examples import recorded

FACTS = {"level": "equal except for", "same": True, "ignored": 2, "files": [{"path": "m.json", "then": "1"}]}


def test_a_verdict_is_written_as_json_and_text_and_the_record_does_not_change(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1)
    before = (directory / "start.json").read_bytes(), (directory / "end.json").read_bytes()
    assert verdicts.last(directory) is None
    path = verdicts.write(directory, FACTS, ["equal except for: 2", "  m.json"])
    assert path.with_suffix(".txt").read_text() == "equal except for: 2\n  m.json\n"
    content = json.loads(path.read_bytes())
    assert (content["schema"], content["files"]) == ("repro-env/verified/1", FACTS["files"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert ((directory / "start.json").read_bytes(), (directory / "end.json").read_bytes()) == before
    assert records.read(directory).state == "done"


def test_old_verdicts_stay_and_runs_show_prints_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded(tmp_path, 1)
    for second, level in enumerate(("different", "equal except for")):
        monkeypatch.setattr("time.time_ns", lambda second=second: (1_800_000_000 + second) * 10**9)
        verdicts.write(directory, {**FACTS, "level": level}, [])
    assert len(list((directory / "verified").glob("*.json"))) == 2
    page = runpage.new(complete=True)
    runpage.show(page, records.read(directory), (), verdicts.last(directory))
    assert "verified  equal except for (2027-01-15T08:00:01Z, 2 differences ignored)" in page.lines


def test_the_newest_of_several_verdicts_of_the_same_second_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = recorded(tmp_path, 1)
    monkeypatch.setattr("time.time_ns", lambda: 1_800_000_000 * 10**9)
    for number in range(8):
        path = verdicts.write(directory, {**FACTS, "level": str(number)}, [])
        os.utime(path, ns=(0, number))
    newest = verdicts.last(directory)
    assert newest is not None
    assert newest.level == "7"


def test_a_verdict_has_no_secrets(tmp_path: Path) -> None:
    token = "ghp_" + "a1" * 18
    path = verdicts.write(recorded(tmp_path, 1), {**FACTS, "causes": [f"url {token}"]}, [f"  {token}"])
    assert token not in path.read_text() + path.with_suffix(".txt").read_text()


def test_a_directory_of_verdicts_that_is_a_link_is_refused(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1)
    (tmp_path / "elsewhere").mkdir()
    (directory / "verified").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="symbolic link"):
        verdicts.write(directory, FACTS, [])
    with pytest.raises(RecordError, match="symbolic link"):
        records.read(directory)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [(b"verified/1", b"verified/2", SpecVersionError), (b'"same": true', b'"same": 1', SpecError), (b"{", b"", SpecError)],
)
def test_an_edited_verdict_is_an_error(tmp_path: Path, old: bytes, new: bytes, error: type[Exception]) -> None:
    path = verdicts.write(recorded(tmp_path, 1), FACTS, [])
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(error):
        verdicts.last(path.parent.parent)
