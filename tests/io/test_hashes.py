from __future__ import annotations

import hashlib
import os
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from repro_env.io import hashes
from repro_env.io.files import Found, walk
from repro_env.io.hashes import FileHashes
from repro_env.model.errors import CaptureError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """300 small files, big ones, an empty one, a symlink and a hard link."""
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    for number in range(300):
        (root / "sub" / f"{number:03}.py").write_bytes(b"x" * number)
    (root / "big").write_bytes(os.urandom(3 << 20))
    (root / "chunk").write_bytes(os.urandom(hashes.BUFFER))
    (root / "link").symlink_to("big")
    (root / "hard").hardlink_to(root / "big")
    return root


@pytest.fixture
def cache(tmp_path: Path) -> FileHashes:
    return FileHashes(tmp_path / "hashes.db")


def _settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything had been written long ago."""
    monkeypatch.setattr(hashes, "SETTLED", -(10**12))


def _truth(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_hashes_of_every_file_and_of_nothing_else(tree: Path, cache: FileHashes, workers: int) -> None:
    advanced: list[int] = []
    found = list(walk(tree))

    assert cache.of(tree, found, workers=workers, advance=advanced.append) == _truth(tree)
    assert list(cache.of(tree, found)) == [one.path for one in found if one.kind == "file"]
    assert sum(advanced) >= sum(one.size for one in found) - (3 << 20), "a hard link is read once"


def test_what_is_known_is_not_read_again(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    _settle(monkeypatch)
    found = list(walk(tree))
    first = cache.of(tree, found)
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.unlink()

    assert cache.of(tree, found) == first
    assert FileHashes(cache._database).of(tree, found) == first, "another process knows it too"


def test_a_long_list_is_known_as_a_whole(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    _settle(monkeypatch)
    monkeypatch.setattr(hashes, "_MANY", 100)
    found = list(walk(tree))
    first = cache.of(tree, found)
    monkeypatch.setattr(FileHashes, "_load", lambda *_: pytest.fail("asked for each file"))

    assert cache.of(tree, found) == first == _truth(tree)


def test_a_list_with_one_file_changed_is_another_list(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    _settle(monkeypatch)
    monkeypatch.setattr(hashes, "_MANY", 100)
    cache.of(tree, list(walk(tree)))
    (tree / "sub/100.py").write_bytes(b"z" * 100)

    assert cache.of(tree, list(walk(tree))) == _truth(tree)
    (tree / "sub/100.py").rename(tree / "sub/new.py")
    assert cache.of(tree, list(walk(tree))) == _truth(tree)


def test_a_list_with_a_young_file_is_not_remembered(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "_MANY", 100)
    found = list(walk(tree))
    past = time.time_ns() + 10**12
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: past)
        cache.of(tree, found)
    (tree / "sub/100.py").write_bytes(b"z" * 100)
    found = list(walk(tree))
    cache.of(tree, found)

    assert not cache._recall(hashes._digest([one for one in found if one.kind == "file"]), 304)


def test_only_some_lists_are_kept(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    _settle(monkeypatch)
    monkeypatch.setattr(hashes, "_MANY", 1)
    found = [one for one in walk(tree) if one.kind == "file"]
    for count in range(1, hashes._LISTS + 6):
        cache.of(tree, found[:count])

    with sqlite3.connect(cache._database) as db:
        assert db.execute("select count(*) from list").fetchone() == (hashes._LISTS,)


def test_an_edit_within_one_tick_of_the_clock_is_seen(tree: Path, cache: FileHashes) -> None:
    """Same inode, size, mtime and ctime, other bytes: only the age of the file can tell."""
    found = list(walk(tree))
    cache.of(tree, found)
    fd = os.open(tree / "sub/100.py", os.O_WRONLY)
    os.write(fd, b"y" * 100)
    os.close(fd)
    facts = (tree / "sub/100.py").stat()
    os.utime(tree / "sub/100.py", ns=(facts.st_atime_ns, next(one.key[3] for one in found if one.path == "sub/100.py")))
    # Read through the old key, as if the clock had not moved.
    again = [one for one in found if one.path == "sub/100.py"]

    assert cache.of(tree, again)["sub/100.py"] == hashlib.sha256(b"y" * 100).hexdigest()


def test_young_files_are_not_remembered_and_old_ones_are(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(walk(tree))
    now = max(one.key[4] for one in found) + hashes.SETTLED // 2
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now)
        cache.of(tree, found)
    assert cache._load(found) == {}

    _settle(monkeypatch)
    cache.of(tree, found)
    assert len(cache._load(found)) == len({one.key for one in found if one.kind == "file"})


def test_another_edit_with_the_same_mtime_and_size_is_seen_by_its_ctime(
    tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _settle(monkeypatch)
    path = tree / "sub/100.py"
    os.utime(path, ns=(10**18, 10**18))
    cache.of(tree, list(walk(tree)))
    time.sleep(0.02)
    path.write_bytes(b"z" * 100)
    os.utime(path, ns=(10**18, 10**18))

    assert cache.of(tree, list(walk(tree)))["sub/100.py"] == hashlib.sha256(b"z" * 100).hexdigest()


@pytest.mark.parametrize("change", ["shorter", "longer", "other", "gone", "link"])
def test_a_file_that_is_no_longer_the_one_found_is_named(tree: Path, cache: FileHashes, change: str) -> None:
    found = list(walk(tree))
    path = tree / "big"
    if change == "shorter":
        os.truncate(path, 5)
    elif change == "longer":
        path.write_bytes(bytes(4 << 20))
    else:
        path.unlink()
        (tree / "hard").unlink()
    if change == "other":
        path.write_bytes(bytes(3 << 20))
    elif change == "link":
        path.symlink_to("chunk")

    with pytest.raises(CaptureError, match=r"tree/(big|hard)"):
        cache.of(tree, found)


def test_a_file_that_cannot_be_read_is_named(tree: Path, cache: FileHashes) -> None:
    found = list(walk(tree))
    (tree / "sub/007.py").unlink()
    (tree / "sub/007.py").mkdir()

    with pytest.raises(CaptureError, match=r"007\.py") as raised:
        cache.of(tree, found, workers=4)
    assert raised.value.hint


@pytest.mark.parametrize("damage", [b"not a database at all, and long enough to be looked at" * 9, b""])
def test_a_damaged_database_costs_time_and_nothing_else(
    tree: Path, cache: FileHashes, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _settle(monkeypatch)
    cache._database.write_bytes(damage)
    found = list(walk(tree))

    assert cache.of(tree, found) == _truth(tree)
    assert cache.of(tree, found) == _truth(tree)
    assert len(cache._load(found)) > 300, "and it works again afterwards"


def test_inodes_above_the_signed_range(cache: FileHashes) -> None:
    key = (2**64 - 3, 2**63 + 5, 1, 2, 3)
    found = Found("x", "file", False, 1, "", key)
    cache._store([(key, b"d" * 32)])

    assert cache._load([found]) == {key: b"d" * 32}


def test_the_table_does_not_grow_without_end(cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "_KEPT", 10)
    cache._store([((1, number, 0, 0, 0), b"d" * 32) for number in range(25)])

    with sqlite3.connect(cache._database) as db:
        kept = [ino for (ino,) in db.execute("select ino from hash order by ino")]
    db.close()
    assert kept == list(range(15, 25))


@pytest.fixture
def flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """More small files than are hashed by threads, some in odd places."""
    monkeypatch.setattr(hashes, "_FLOCK", 70)
    folder = tmp_path / "flock"
    for number in range(4 * 70):
        path = folder / f"ünï {number % 3}\n" / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * (number % 7))
    (folder / "big").write_bytes(bytes(2 << 20))
    return folder


@pytest.mark.parametrize("workers", [1, 5])
def test_many_small_files_are_hashed_by_helpers(
    flock: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    found = list(walk(flock))
    files = [one for one in found if one.kind == "file"]
    expected = {one.path: hashlib.sha256((flock / one.path).read_bytes()).hexdigest() for one in files}
    here: list[str] = []
    real = hashes._hash

    def noted(root: Path, one: Found, buffer: bytearray, failed: list[BaseException]) -> bytes:
        here.append(one.path)
        return real(root, one, buffer, failed)

    monkeypatch.setattr(hashes, "_hash", noted)
    counted: list[int] = []
    assert cache.of(flock, found, workers=workers, advance=counted.append) == expected
    assert here == ["big"]
    assert sum(counted) == sum(one.size for one in files)


def test_a_relative_root_is_fine_for_helpers(flock: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(flock.parent)
    found = list(walk(flock))
    assert cache.of(Path("flock"), found) == cache.of(flock, found)


def test_without_helpers_it_takes_longer_and_is_the_same(
    flock: Path, cache: FileHashes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(walk(flock))
    plain = cache.of(flock, found)
    for number, helper in enumerate((str(tmp_path / "gone.py"), "/dev/null")):
        monkeypatch.setattr(hashes, "_HELPER", helper)
        assert FileHashes(tmp_path / f"other{number}.db").of(flock, found) == plain
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert FileHashes(tmp_path / "another.db").of(flock, found) == plain


def test_what_a_helper_finds_changed_is_named(flock: Path, cache: FileHashes) -> None:
    found = list(walk(flock))
    victim = next(one.path for one in found if one.path.endswith("/8"))
    (flock / victim).write_text("other")
    with pytest.raises(CaptureError, match="changed while it was being read") as caught:
        cache.of(flock, found)
    assert caught.value.where == str(flock / victim)
    (flock / victim).unlink()
    with pytest.raises(CaptureError, match="cannot be read") as caught:
        cache.of(flock, found)
    assert caught.value.where == str(flock / victim)
