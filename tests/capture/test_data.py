from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from repro_env.capture import data as module
from repro_env.capture.data import check, fingerprint, look
from repro_env.io.hashes import FileHashes
from repro_env.model import codec
from repro_env.model.errors import DataError
from repro_env.model.spec import Data
from repro_env.model.talk import Advance, Silent
from tests.parts import need


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


def test_what_a_run_may_not_see_is_named(data: Path, hashes: FileHashes) -> None:
    assert look(data, "/d", hashes).problems == ()
    os.mkfifo(data / "pipe")
    (data / "by-name").symlink_to("/etc/hostname")
    for number in range(4):
        (data / "deep" / f"out{number}").symlink_to("../../elsewhere")
    (data / "broken").symlink_to("nothing-here")
    strange, away = look(data, "/d", hashes).problems
    assert strange == "data /d: pipe: a pipe, socket or device, held by its name alone"
    assert away.startswith("data /d: by-name, deep/out0, deep/out1 and 2 more: a symlink that leads out of it; ")


def test_an_unreadable_file_is_named(data: Path, hashes: FileHashes) -> None:
    need(os.getuid() == 0, "only uid 0 can become another user")
    (data / "deep" / "b.bin").chmod(0)
    (data / "deep").chmod(0o755)
    for folder in (data, *data.parents):
        if folder.is_relative_to(tempfile.gettempdir()) and str(folder) != tempfile.gettempdir():
            folder.chmod(0o755)
    os.seteuid(54321)
    try:
        with pytest.raises(DataError) as caught:
            fingerprint(data, "/d", FileHashes(Path("/nowhere/hashes.db")))
    finally:
        os.seteuid(0)
    assert str(data / "deep" / "b.bin") in str(caught.value)


class Meddler(Silent):
    """Lets the data change while it is read."""

    def __init__(self, change: Callable[[], object]) -> None:
        self.change = change
        self.said: list[tuple[int, str]] = []

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        self.said.append((total, label))
        self.change()
        return super().progress(total, label)


def test_a_change_while_it_is_read_is_noticed(data: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", 1)
    plain = fingerprint(data, "/d", hashes)
    changes: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: (data / "new.csv").write_text("x"), "new.csv"),
        ((data / "new.csv").unlink, "new.csv"),
        (lambda: (data / "a.csv").write_text("other"), "a.csv"),
        ((data / "deep" / "empty").rmdir, "deep/empty"),
    )
    for change, path in changes:
        Path(data.parent / "hashes.db").unlink(missing_ok=True)
        with pytest.raises(DataError, match="changed while it was") as caught:
            look(data, "/d", hashes, Meddler(change))
        assert caught.value.where == str(data / path)
    assert fingerprint(data, "/d", hashes) != plain


def test_long_reading_is_told_once_and_only_of_what_is_not_known(
    data: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONG", 500)
    quiet, loud = Meddler(lambda: None), Meddler(lambda: None)
    look(data / "a.csv", "/d", hashes, quiet)
    assert quiet.said == []
    look(data, "/d", hashes, loud)
    assert [label for _, label in loud.said] == [f"reading data {data}"]


def test_what_is_known_is_not_read_again(data: Path, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONG", 1)
    settled = time.time_ns() - 10_000_000_000
    monkeypatch.setattr("repro_env.io.hashes.SETTLED", -10_000_000_000)  # what was written just now counts as old
    first = look(data, "/d", hashes, Meddler(lambda: None))
    again = Meddler(lambda: None)
    assert look(data, "/d", hashes, again) == first
    assert again.said == []
    # Same size, same mtime: the inode's change time tells.
    facts = (data / "a.csv").stat()
    (data / "a.csv").write_text("1,3\n")
    os.utime(data / "a.csv", ns=(settled, facts.st_mtime_ns))
    assert look(data, "/d", hashes).data.digest != first.data.digest


VOCABULARY = "mlcommons.org/croissant"
CROISSANT = {"@context": {"@language": "en", "cr": f"http://{VOCABULARY}/"}, "name": "digits"}


def test_croissant_files_at_the_root(data: Path, hashes: FileHashes) -> None:
    assert fingerprint(data, "/d", hashes).croissant == ()
    conforms = {"@context": "https://example.org", "conformsTo": f"http://{VOCABULARY}/1.0"}
    for name, value in {
        "croissant.json": CROISSANT,
        "digits.croissant.json": conforms,
        "metadata.json": CROISSANT,
        "other.json": CROISSANT,
        "deep/croissant.json": CROISSANT,
        "a.croissant.json": {"@context": "https://example.org", "description": "not mlcommons.org/croissant"},
        "b.croissant.json": [CROISSANT],
    }.items():
        (data / name).write_text(json.dumps(value))
    (data / "c.croissant.json").write_text('{"@context": ')
    (data / "d.croissant.json").write_bytes(b'{"@context": "\xff"}')
    (data / "e.croissant.json").write_bytes(b'{"@context": ' + b"[" * 100_000)
    (data / "f.croissant.json").symlink_to("croissant.json")
    facts = fingerprint(data, "/d", hashes)
    assert [one.path for one in facts.croissant] == ["croissant.json", "digits.croissant.json", "metadata.json"]
    digest = "sha256:" + hashlib.sha256((data / "croissant.json").read_bytes()).hexdigest()
    assert facts.croissant[0].sha256 == digest
    assert [one.sha256 for one in fingerprint(data / "croissant.json", "/d", hashes).croissant] == [digest]


def test_what_can_be_mounted_together(data: Path) -> None:
    check([(data, "/d"), (data, "/e"), (data / "a.csv", "/dd"), (data / "deep", "/d/deep")])
    for pairs, why in (
        ([(data, "d")], "is no absolute, normal path"),
        ([(data, "/a/../d")], "is no absolute, normal path"),
        ([(data, "/d/")], "is no absolute, normal path"),
        ([(data, "/d\n")], "is no absolute, normal path"),
        ([(data, "/d"), (data / "deep", "/d")], "is there already"),
        ([(data / "deep", "/d/more"), (data, "/d")], "which has no more to put it over"),
    ):
        with pytest.raises(DataError, match=why):
            check(pairs)
