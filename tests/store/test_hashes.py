from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.io.files import key_of, walk
from repro_env.schema.errors import CaptureError
from repro_env.store import hashes
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileFacts, FileHashes, unchanged


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create 300 small files, large files, an empty file, a symlink and a hard link."""
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
    return FileHashes(FactCache(tmp_path))


def _treat_as_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all files count as written long ago."""
    monkeypatch.setattr(hashes, "SETTLED", -(10**12))


def _expected(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_file_is_hashed_and_nothing_else(tree: Path, cache: FileHashes, workers: int) -> None:
    counts: list[int] = []
    found = list(walk(tree))

    assert cache.of(tree, found, workers=workers, advance=counts.append) == _expected(tree)
    assert list(cache.of(tree, found)) == [entry.path for entry in found if entry.kind == "file"]
    assert sum(counts) >= sum(entry.size for entry in found) - (3 << 20), "a hard link is read once"


def test_cached_files_are_not_read_again(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    _treat_as_old(monkeypatch)
    found = list(walk(tree))
    first = cache.of(tree, found)
    for path in tree.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.unlink()

    assert cache.of(tree, found) == first
    assert FileHashes(cache._facts).of(tree, found) == first, "the cache is shared with other processes"


def test_an_edit_within_one_tick_of_the_clock_is_detected(tree: Path, cache: FileHashes) -> None:
    """Only the bytes change: the key is the same, but the file is too young to be cached."""
    found = list(walk(tree))
    cache.of(tree, found)
    fd = os.open(tree / "sub/100.py", os.O_WRONLY)
    os.write(fd, b"y" * 100)
    os.close(fd)
    facts = (tree / "sub/100.py").stat()
    os.utime(tree / "sub/100.py", ns=(facts.st_atime_ns, next(entry.key[3] for entry in found if entry.path == "sub/100.py")))
    # Use the old key, as if the clock had not moved.
    unchanged = [entry for entry in found if entry.path == "sub/100.py"]

    assert cache.of(tree, unchanged)["sub/100.py"] == hashlib.sha256(b"y" * 100).hexdigest()


def test_files_are_cached_only_when_they_are_old_enough(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(walk(tree))
    now = max(entry.key[4] for entry in found) + hashes.SETTLED // 2
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now)
        cache.of(tree, found)
    assert cache._load(tree) == {}

    _treat_as_old(monkeypatch)
    cache.of(tree, found)
    assert len(cache._load(tree)) == len({entry.key for entry in found if entry.kind == "file"})


def test_an_edit_with_the_same_mtime_and_size_is_detected_by_ctime(
    tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _treat_as_old(monkeypatch)
    path = tree / "sub/100.py"
    os.utime(path, ns=(10**18, 10**18))
    cache.of(tree, list(walk(tree)))
    time.sleep(0.02)
    path.write_bytes(b"z" * 100)
    os.utime(path, ns=(10**18, 10**18))

    assert cache.of(tree, list(walk(tree)))["sub/100.py"] == hashlib.sha256(b"z" * 100).hexdigest()


@pytest.mark.parametrize("change", ["shorter", "longer", "rewritten", "removed", "link"])
def test_a_file_that_changed_after_the_listing_is_an_error(tree: Path, cache: FileHashes, change: str) -> None:
    found = list(walk(tree))
    path = tree / "big"
    if change == "shorter":
        os.truncate(path, 5)
    elif change == "longer":
        path.write_bytes(bytes(4 << 20))
    else:
        path.unlink()
        (tree / "hard").unlink()
    if change == "rewritten":
        path.write_bytes(bytes(3 << 20))
    elif change == "link":
        path.symlink_to("chunk")

    with pytest.raises(CaptureError, match=r"tree/(big|hard)"):
        cache.of(tree, found)


def test_an_unreadable_file_is_an_error(tree: Path, cache: FileHashes) -> None:
    found = list(walk(tree))
    (tree / "sub/007.py").unlink()
    (tree / "sub/007.py").mkdir()

    with pytest.raises(CaptureError, match=r"007\.py") as raised:
        cache.of(tree, found, workers=4)
    assert raised.value.hint


def test_a_damaged_cache_is_replaced(tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    _treat_as_old(monkeypatch)
    found = list(walk(tree))
    cache.of(tree, found)
    (path,) = (path for path in cache._facts._root.glob("file-hashes/*"))
    for damage in (b"", b"not hashes at all", path.read_bytes()[:-100], path.read_bytes()[:-100] + bytes(100)):
        path.write_bytes(damage)
        assert cache._load(tree) == {}
        assert cache.of(tree, found) == _expected(tree)
        assert len(cache._load(tree)) > 300, "the new cache works"


def test_hashes_of_replaced_files_are_removed_from_the_cache(
    tree: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _treat_as_old(monkeypatch)
    cache.of(tree, list(walk(tree)))
    count = len(cache._load(tree))
    (tree / "sub/100.py").write_bytes(b"z" * 100)
    (tree / "sub/101.py").rename(tree / "sub/new.py")

    assert cache.of(tree, list(walk(tree))) == _expected(tree)
    assert len(cache._load(tree)) == count


def test_hashes_of_a_directory_whose_name_is_not_utf8_are_cached(
    tmp_path: Path, cache: FileHashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    _treat_as_old(monkeypatch)
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff"))
    directory.mkdir()
    (directory / "a").write_bytes(b"x")

    assert cache.of(directory, list(walk(directory))) == _expected(directory)
    assert len(cache._load(directory)) == 1


def test_the_largest_inodes_are_cached(tmp_path: Path, cache: FileHashes) -> None:
    hashes_by_key = {(2**64 - 3, 2**63 + 5, 1, -2, 2**63): b"d" * 32}
    cache._store(tmp_path, {}, hashes_by_key)
    assert cache._load(tmp_path) == hashes_by_key


def test_the_number_of_cached_files_is_limited(cache: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "_MAX_FILES", 10)
    cache._store(Path("d"), {}, {(1, number, 0, 0, 0): b"d" * 32 for number in range(25)})

    assert [key[1] for key in cache._load(Path("d"))] == list(range(15, 25))


def test_a_single_file_is_hashed_through_a_symlink(tree: Path, cache: FileHashes) -> None:
    (tree / "alias").symlink_to("sub/100.py")
    expected = hashlib.sha256((tree / "sub/100.py").read_bytes()).hexdigest()
    assert cache.of_file(tree / "alias") == cache.of_file(tree / "sub/100.py") == expected


def facts_of(path: Path, cache: FactCache, read: list[str]) -> str:
    """The text of a file, as a fact of it. `read`: the paths that were read."""

    def text(path: str) -> str:
        read.append(path)
        return Path(path).read_text()

    files = FileFacts[str](cache, "texts", "x", str, text)
    value = files.of(key_of(path.stat()), str(path))
    files.save()
    return value


def test_a_fact_of_a_file_is_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _treat_as_old(monkeypatch)
    path, facts, read = tmp_path / "a", FactCache(tmp_path), list[str]()
    path.write_text("one")
    assert [facts_of(path, facts, read) for _ in range(3)] == ["one"] * 3
    assert len(read) == 1
    times = path.stat()
    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert facts_of(path, facts, read) == "two"


def test_a_fact_of_a_new_file_and_a_damaged_fact_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, facts, read = tmp_path / "a", FactCache(tmp_path), list[str]()
    path.write_text("one")
    for _ in range(2):
        facts_of(path, facts, read)
    assert len(read) == 2
    _treat_as_old(monkeypatch)
    facts.put("texts", "x", b"\x92\x01")
    assert [facts_of(path, facts, read) for _ in range(2)] == ["one"] * 2
    assert len(read) == 3


def _edit(root: Path) -> None:
    times = (root / "sub/001.py").stat()
    (root / "sub/001.py").write_text("y")
    os.utime(root / "sub/001.py", ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        _edit,
        lambda root: (root / "new").touch(),
        lambda root: (root / "sub/new").touch(),
        lambda root: (root / "sub/new").mkdir(),
        lambda root: (root / "sub/001.py").unlink(),
        lambda root: (root / "link").unlink(),
        lambda root: ((root / "link").unlink(), (root / "link").symlink_to("chunk")),
        lambda root: (root / "sub/001.py").chmod(0o755),
    ],
    ids=["edit", "file", "file in a directory", "directory", "removed", "removed link", "other link", "mode"],
)
def test_a_listing_is_unchanged_until_a_path_changes(tree: Path, change: Callable[[Path], object]) -> None:
    found, later = list(walk(tree)), time.time_ns() + 10 * hashes.SETTLED
    assert unchanged(tree, found, since=later)
    assert not unchanged(tree, found, since=time.time_ns()), "a directory changed too shortly before"
    change(tree)
    assert not unchanged(tree, found, since=later)
