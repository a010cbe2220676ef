from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from repro_env.schema.errors import RecordError
from repro_env.store.specs import archive
from repro_env.store.specs.archive import StoredSpec

HEX = "0123456789abcdef" * 4


def test_a_spec_is_written_once_and_read_only(tmp_path: Path) -> None:
    digest = archive.write(tmp_path, b"{}")
    path = archive.directory_of(tmp_path, digest) / "spec.json"
    first = path.stat()
    os.utime(path.parent, (1, 1))
    assert archive.write(tmp_path, b"{}") == digest
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert stat.S_IMODE(first.st_mode) == 0o444
    assert archive.read(tmp_path, digest) == b"{}"
    (spec,) = archive.listing(tmp_path)
    assert (spec.digest, spec.directory) == (digest, path.parent)
    assert spec.used > 1, "the time of the last use is updated"


@pytest.mark.parametrize("content", [b"{", b"", None])
def test_a_missing_or_changed_spec_is_written_again(tmp_path: Path, content: bytes | None) -> None:
    digest = archive.write(tmp_path, b"{}")
    path = archive.directory_of(tmp_path, digest) / "spec.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError, match="is missing" if content is None else "has changed"):
        archive.read(tmp_path, digest)
    assert archive.write(tmp_path, b"{}") == digest
    assert archive.read(tmp_path, digest) == b"{}"


def test_a_pipe_instead_of_a_spec_is_not_read(tmp_path: Path) -> None:
    digest = archive.write(tmp_path, b"{}")
    path = archive.directory_of(tmp_path, digest) / "spec.json"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="is missing or cannot be read"):
        archive.read(tmp_path, digest)


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(RecordError, match="the copy of the spec cannot be written"):
        archive.write(tmp_path / "runs", b"{}")


def test_only_directories_with_the_name_of_a_digest_are_specs(tmp_path: Path) -> None:
    assert archive.listing(tmp_path) == ()
    for name in (f"sha256-{HEX}", HEX, "sha256-1"):
        (tmp_path / "specs" / name).mkdir(parents=True)
    (tmp_path / "specs" / f"sha256-{HEX[::-1]}").symlink_to(tmp_path)
    assert [spec.digest for spec in archive.listing(tmp_path)] == [f"sha256:{HEX}"]
    assert archive.runs_of(tmp_path / "specs" / f"sha256-{HEX}") == tmp_path
    assert archive.runs_of(tmp_path / "specs" / HEX) is None, "the directories in the store have such names"
    assert archive.runs_of(tmp_path / "repro") is None


def test_a_spec_that_is_removed_during_a_listing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for digest in (HEX, HEX[::-1]):
        (tmp_path / "specs" / f"sha256-{digest}").mkdir(parents=True)
    scandir = os.scandir

    def remove_after_scan(path: Path) -> list[os.DirEntry[str]]:
        entries = list(scandir(path))
        (tmp_path / "specs" / f"sha256-{HEX}").rmdir()
        return entries

    monkeypatch.setattr(os, "scandir", remove_after_scan)
    assert [spec.digest for spec in archive.listing(tmp_path)] == [f"sha256:{HEX[::-1]}"]


def test_an_unrecorded_spec_is_unused_after_a_grace_period(tmp_path: Path) -> None:
    now = time.time()
    ages = {"old": 7200.0, "recorded": 7200.0, "young": 60.0, "in the future": -7200.0}
    stored = [StoredSpec(name, tmp_path, now - age) for name, age in ages.items()]
    assert [spec.digest for spec in archive.unused(stored, {"recorded"}, now=now)] == ["old"]


def test_the_digest_of_a_spec_is_found_in_an_unreadable_record(tmp_path: Path) -> None:
    assert archive.mentioned(tmp_path) == set()
    (tmp_path / "start.json").write_text(f'{{"spec_file": "sha256:{HEX}", "image": "sha256:{HEX[::-1]}", "comm')
    assert archive.mentioned(tmp_path) == {f"sha256:{HEX}", f"sha256:{HEX[::-1]}"}


def test_a_spec_is_removed_and_a_killed_removal_is_finished_later(tmp_path: Path) -> None:
    for data in (b"1", b"2"):
        archive.write(tmp_path, data)
    first, second = archive.listing(tmp_path)
    archive.remove(first)
    assert archive.listing(tmp_path) == (second,)
    (second.directory / "blobs").mkdir()
    (second.directory / "spec.json").unlink()
    with pytest.raises(RecordError, match="is missing"):
        archive.read(tmp_path, second.digest)
    (killed,) = archive.listing(tmp_path)
    archive.remove(killed)
    assert not second.directory.exists()
