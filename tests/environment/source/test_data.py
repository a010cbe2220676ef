from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from repro_env.environment.source.data import look
from repro_env.schema import codec
from repro_env.schema.errors import DataError
from repro_env.schema.progress import Advance, Silent
from repro_env.schema.spec import Data
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileHashes
from tests.parts import need


def fingerprint(source: Path, target: str, hashes: FileHashes) -> Data:
    return look(source, target, hashes).data


@pytest.fixture
def hashes(tmp_path: Path) -> FileHashes:
    return FileHashes(FactCache(tmp_path))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    (directory / "deep" / "empty").mkdir(parents=True)
    (directory / "a.csv").write_text("1,2\n")
    (directory / "deep" / "b.bin").write_bytes(bytes(1000))
    (directory / "deep" / "link").symlink_to("../a.csv")
    return directory


def test_the_digest_of_a_file_is_its_sha256(data: Path, hashes: FileHashes) -> None:
    digest = "sha256:" + hashlib.sha256(b"1,2\n").hexdigest()
    assert fingerprint(data / "a.csv", "/data/a.csv", hashes) == Data(path="/data/a.csv", digest=digest, files=1, size=4)
    (data / "by-link").symlink_to("a.csv")
    assert fingerprint(data / "by-link", "/x", hashes).digest == digest


def test_the_digest_of_a_directory_covers_names_and_contents(data: Path, hashes: FileHashes) -> None:
    zeros = hashlib.sha256(bytes(1000)).hexdigest()
    rows = [
        ["a.csv", "file", 4, hashlib.sha256(b"1,2\n").hexdigest()],
        ["deep", "dir", 0, ""],
        ["deep/b.bin", "file", 1000, zeros],
        ["deep/empty", "dir", 0, ""],
        ["deep/link", "link", 0, "../a.csv"],
    ]
    assert fingerprint(data, "/d", hashes) == Data(path="/d", digest=codec.digest(rows), files=2, size=1004)


def test_names_and_contents_change_the_digest_but_modes_and_times_do_not(data: Path, hashes: FileHashes) -> None:
    first = fingerprint(data, "/d", hashes)
    (data / "a.csv").chmod(0o600)
    os.utime(data / "a.csv", (1, 1))
    moved = data.rename(data.parent / "elsewhere")
    data.symlink_to("elsewhere")
    assert fingerprint(moved, "/d", hashes) == fingerprint(data, "/d", hashes) == first
    digests = {first.digest}
    (data / "a.csv").write_text("1,3\n")
    digests.add(fingerprint(data, "/d", hashes).digest)
    (data / "a.csv").rename(data / "b.csv")
    digests.add(fingerprint(data, "/d", hashes).digest)
    (data / "deep" / "link").unlink()
    digests.add(fingerprint(data, "/d", hashes).digest)
    (data / "deep" / "empty").rmdir()
    digests.add(fingerprint(data, "/d", hashes).digest)
    assert len(digests) == 5


def test_missing_data_and_devices_are_refused(data: Path, hashes: FileHashes) -> None:
    with pytest.raises(DataError, match="does not exist"):
        fingerprint(data / "gone", "/d", hashes)
    with pytest.raises(DataError, match="neither a file nor a directory"):
        fingerprint(Path("/dev/null"), "/d", hashes)
    os.mkfifo(data / "pipe")
    assert fingerprint(data, "/d", hashes).files == 2
    Path(os.fsdecode(os.fsencode(data) + b"/bad\xff")).write_text("x")
    with pytest.raises(DataError, match="not valid UTF-8"):
        fingerprint(data, "/d", hashes)


def test_data_that_a_run_may_not_see_is_a_problem(data: Path, hashes: FileHashes) -> None:
    assert look(data, "/d", hashes).problems == ()
    os.mkfifo(data / "pipe")
    (data / "by-name").symlink_to("/etc/hostname")
    for number in range(4):
        (data / "deep" / f"out{number}").symlink_to("../../elsewhere")
    (data / "broken").symlink_to("nothing-here")
    special, links = look(data, "/d", hashes).problems
    assert special == "data /d: pipe, socket or device, recorded only by name: pipe"
    assert links.startswith("data /d: symlink to a path outside the data: by-name, deep/out0, deep/out1 and 2 more; ")


def test_the_error_names_an_unreadable_file(data: Path, hashes: FileHashes) -> None:
    need(os.getuid() == 0, "only uid 0 can become another user")
    (data / "deep" / "b.bin").chmod(0)
    (data / "deep").chmod(0o755)
    for directory in (data, *data.parents):
        if directory.is_relative_to(tempfile.gettempdir()) and str(directory) != tempfile.gettempdir():
            directory.chmod(0o755)
    os.seteuid(54321)
    try:
        with pytest.raises(DataError) as caught:
            fingerprint(data, "/d", FileHashes(FactCache(Path("/nowhere"))))
    finally:
        os.seteuid(0)
    assert str(data / "deep" / "b.bin") in str(caught.value)


class Changer(Silent):
    """Changes the data after they were listed."""

    def __init__(self, change: Callable[[], object]) -> None:
        self.change = change

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        self.change()
        return super().progress(total, label)


def test_a_change_during_reading_is_an_error(data: Path, hashes: FileHashes) -> None:
    for change in ((data / "deep" / "b.bin").unlink, lambda: (data / "a.csv").write_text("other")):
        with pytest.raises(DataError, match=r"changed while it was|cannot be read"):
            look(data, "/d", hashes, Changer(change))


def test_a_change_that_keeps_the_size_and_the_time_is_found(
    data: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro_env.store.hashes.SETTLED", -10_000_000_000)  # so that new files count as old and are cached
    first = look(data, "/d", hashes)
    assert look(data, "/d", hashes) == first
    facts = (data / "a.csv").stat()
    (data / "a.csv").write_text("1,3\n")
    os.utime(data / "a.csv", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert look(data, "/d", hashes).data.digest != first.data.digest
