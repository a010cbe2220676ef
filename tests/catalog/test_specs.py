from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from repro_env.catalog import specs
from repro_env.catalog.specs import Kept
from repro_env.model.errors import RecordError

HEX = "0123456789abcdef" * 4


def test_a_spec_is_written_once_and_cannot_be_edited_by_chance(tmp_path: Path) -> None:
    digest = specs.write(tmp_path, b"{}")
    path = specs.place(tmp_path, digest) / "spec.json"
    first = path.stat()
    os.utime(path.parent, (1, 1))
    assert specs.write(tmp_path, b"{}") == digest
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert stat.S_IMODE(first.st_mode) == 0o444
    assert specs.read(tmp_path, digest) == b"{}"
    ((kept),) = specs.there(tmp_path)
    assert (kept.digest, kept.folder) == (digest, path.parent)
    assert kept.used > 1, "a run that begins with it is noted"


@pytest.mark.parametrize("there", [b"{", b"", None])
def test_what_a_killed_run_left_or_somebody_changed_is_written_again(tmp_path: Path, there: bytes | None) -> None:
    digest = specs.write(tmp_path, b"{}")
    path = specs.place(tmp_path, digest) / "spec.json"
    path.unlink()
    if there is not None:
        path.write_bytes(there)
    with pytest.raises(RecordError, match="is not there" if there is None else "it was changed"):
        specs.read(tmp_path, digest)
    assert specs.write(tmp_path, b"{}") == digest
    assert specs.read(tmp_path, digest) == b"{}"


def test_a_pipe_in_its_place_is_not_read(tmp_path: Path) -> None:
    digest = specs.write(tmp_path, b"{}")
    path = specs.place(tmp_path, digest) / "spec.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="is not there"):
        specs.read(tmp_path, digest)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(RecordError, match="a copy of the run's spec cannot be made"):
        specs.write(tmp_path / "runs", b"{}")


def test_only_folders_of_such_a_name_are_specs(tmp_path: Path) -> None:
    assert specs.there(tmp_path) == ()
    for name in (f"sha256-{HEX}", HEX, "sha256-1", f".gone-sha256-{HEX}"):
        (tmp_path / "specs" / name).mkdir(parents=True)
    (tmp_path / "specs" / f"sha256-{HEX[::-1]}").symlink_to(tmp_path)
    assert [one.digest for one in specs.there(tmp_path)] == [f"sha256:{HEX}"]
    assert specs.runs_of(tmp_path / "specs" / f"sha256-{HEX}") == tmp_path
    assert specs.runs_of(tmp_path / "specs" / HEX) is None, "the store's folders have such names, and lie in no project"
    assert specs.runs_of(tmp_path / "repro") is None


def test_what_no_record_names_is_unused_unless_a_run_may_be_about_to_begin(tmp_path: Path) -> None:
    now = time.time()
    ages = {"old": 7200.0, "named": 7200.0, "young": 60.0, "of the future": -7200.0}
    found = [Kept(name, tmp_path, now - age) for name, age in ages.items()]
    assert [one.digest for one in specs.unused(found, {"named"}, now=now)] == ["old"]


def test_a_record_that_cannot_be_read_mentions_its_spec(tmp_path: Path) -> None:
    assert specs.mentioned(tmp_path) == set()
    (tmp_path / "start.json").write_text(f'{{"spec_file": "sha256:{HEX}", "image": "sha256:{HEX[::-1]}", "comm')
    assert specs.mentioned(tmp_path) == {f"sha256:{HEX}", f"sha256:{HEX[::-1]}"}


def test_removed_whole_and_what_a_killed_removal_left_goes_later(tmp_path: Path) -> None:
    for data in (b"1", b"2"):
        specs.write(tmp_path, data)
    first, second = specs.there(tmp_path)
    specs.remove(first)
    assert specs.there(tmp_path) == (second,)
    hidden = second.folder.with_name(f".gone-{second.folder.name}")
    second.folder.rename(hidden)
    specs.tidy(tmp_path)
    assert not hidden.exists()
