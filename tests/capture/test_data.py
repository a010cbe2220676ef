from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from repro_env.capture.data import fingerprint
from repro_env.io.hashes import FileHashes
from repro_env.model import codec
from repro_env.model.errors import DataError
from repro_env.model.spec import Data


@pytest.fixture
def hashes(tmp_path: Path) -> FileHashes:
    return FileHashes(tmp_path / "hashes.db")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "a.csv").write_text("1,2\n")
    (folder / "deep" / "b.bin").write_bytes(bytes(1000))
    (folder / "deep" / "link").symlink_to("../a.csv")
    return folder


def test_a_file(data: Path, hashes: FileHashes) -> None:
    digest = "sha256:" + hashlib.sha256(b"1,2\n").hexdigest()
    assert fingerprint(data / "a.csv", "/data/a.csv", hashes) == Data(path="/data/a.csv", digest=digest, files=1, size=4)
    (data / "by-link").symlink_to("a.csv")
    assert fingerprint(data / "by-link", "/x", hashes).digest == digest


def test_a_tree_is_its_names_and_contents(data: Path, hashes: FileHashes) -> None:
    zeros = hashlib.sha256(bytes(1000)).hexdigest()
    rows = [
        ["a.csv", "file", 4, hashlib.sha256(b"1,2\n").hexdigest()],
        ["deep", "dir", 0, ""],
        ["deep/b.bin", "file", 1000, zeros],
        ["deep/empty", "dir", 0, ""],
        ["deep/link", "link", 0, "../a.csv"],
    ]
    assert fingerprint(data, "/d", hashes) == Data(path="/d", digest=codec.digest(rows), files=2, size=1004)


def test_what_changes_it_and_what_does_not(data: Path, hashes: FileHashes) -> None:
    first = fingerprint(data, "/d", hashes)
    (data / "a.csv").chmod(0o600)
    os.utime(data / "a.csv", (1, 1))
    moved = data.rename(data.parent / "elsewhere")
    data.symlink_to("elsewhere")
    assert fingerprint(moved, "/d", hashes) == fingerprint(data, "/d", hashes) == first
    seen = {first.digest}
    (data / "a.csv").write_text("1,3\n")
    seen.add(fingerprint(data, "/d", hashes).digest)
    (data / "a.csv").rename(data / "b.csv")
    seen.add(fingerprint(data, "/d", hashes).digest)
    (data / "deep" / "link").unlink()
    seen.add(fingerprint(data, "/d", hashes).digest)
    (data / "deep" / "empty").rmdir()
    seen.add(fingerprint(data, "/d", hashes).digest)
    assert len(seen) == 5


def test_missing_and_strange(data: Path, hashes: FileHashes) -> None:
    with pytest.raises(DataError, match="no such data"):
        fingerprint(data / "gone", "/d", hashes)
    with pytest.raises(DataError, match="neither a file nor a folder"):
        fingerprint(Path("/dev/null"), "/d", hashes)
    os.mkfifo(data / "pipe")
    assert fingerprint(data, "/d", hashes).files == 2
    Path(os.fsdecode(os.fsencode(data) + b"/bad\xff")).write_text("x")
    with pytest.raises(DataError, match="not UTF-8"):
        fingerprint(data, "/d", hashes)
