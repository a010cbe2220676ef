"""The verdict of a verification, kept beside the run."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from repro_env.catalog import records, verified
from repro_env.cli import runpage
from repro_env.model.errors import RecordError, SpecError, SpecVersionError
from tests.catalog.test_records import recorded

FACTS = {"level": "equal except for", "same": True, "ignored": 2, "files": [{"path": "m.json", "then": "1"}]}


def test_a_verdict_is_kept_for_programs_and_for_people_and_the_record_stays(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 1)
    before = (folder / "start.json").read_bytes(), (folder / "end.json").read_bytes()
    assert verified.last(folder) is None
    path = verified.write(folder, FACTS, ["equal except for: 2", "  m.json"])
    assert path.with_suffix(".txt").read_text() == "equal except for: 2\n  m.json\n"
    kept = json.loads(path.read_bytes())
    assert (kept["schema"], kept["files"]) == ("repro-env/verified/1", FACTS["files"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert ((folder / "start.json").read_bytes(), (folder / "end.json").read_bytes()) == before
    assert records.read(folder).state == "done"


def test_an_older_verdict_stays_and_runs_show_names_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = recorded(tmp_path, 1)
    for second, level in enumerate(("different", "equal except for")):
        monkeypatch.setattr("time.time_ns", lambda second=second: (1_800_000_000 + second) * 10**9)
        verified.write(folder, {**FACTS, "level": level}, [])
    assert len(list((folder / "verified").glob("*.json"))) == 2
    lines = list(runpage.lines(records.read(folder), (), verified.last(folder)))
    assert "verified  equal except for (2027-01-15T08:00:01Z, 2 differences ignored)" in lines


def test_a_kept_verdict_has_no_secrets(tmp_path: Path) -> None:
    token = "ghp_" + "a1" * 18
    path = verified.write(recorded(tmp_path, 1), {**FACTS, "causes": [f"url {token}"]}, [f"  {token}"])
    assert token not in path.read_text() + path.with_suffix(".txt").read_text()


def test_a_directory_of_verdicts_that_is_a_link_is_refused(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 1)
    (tmp_path / "elsewhere").mkdir()
    (folder / "verified").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="symbolic link"):
        verified.write(folder, FACTS, [])
    with pytest.raises(RecordError, match="symbolic link"):
        records.read(folder)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [(b"verified/1", b"verified/2", SpecVersionError), (b'"same": true', b'"same": 1', SpecError), (b"{", b"", SpecError)],
)
def test_a_verdict_that_was_edited_is_named(tmp_path: Path, old: bytes, new: bytes, error: type[Exception]) -> None:
    path = verified.write(recorded(tmp_path, 1), FACTS, [])
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data.replace(old, new, 1))
    with pytest.raises(error):
        verified.last(path.parent.parent)
