"""Compute the sha256 of many files with several threads, and cache them.

The cache key is `Found.key` (device, inode, size, mtime, ctime). Programs cannot set ctime, so a file with the same
key has the same content, unless it was written again within one tick of the file system's clock. For this reason files
that changed less than `SETTLED` ago are hashed but not cached.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from repro_env.io.files import Found, Key, key_of, walk
from repro_env.io.patience import PATIENCE
from repro_env.oci.entry import Entry
from repro_env.schema import codec
from repro_env.schema.errors import CaptureError, os_errors_as
from repro_env.schema.progress import Advance
from repro_env.store.facts import FactCache

SETTLED = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT)."""
BUFFER = 1 << 18
_LARGE = 1 << 20
"""Size in bytes from which a file is hashed on its own."""
_BATCH = 64
"""Number of small files that a thread takes at once."""
_MAX_FILES = 2_000_000
"""Files of a directory that are cached at most."""
T = TypeVar("T")
_KIND = "file-hashes"
"""Kind of these facts, by directory."""
_decoder = msgspec.msgpack.Decoder(list[tuple[Key, bytes]])


class FileHashes:
    """A cache of sha256 digests by directory and `Found.key`."""

    def __init__(self, facts: FactCache) -> None:
        self._facts = facts

    def of(
        self, root: Path, entries: Sequence[Found], *, workers: int | None = None, advance: Advance | None = None
    ) -> dict[str, str]:
        """Return path -> hex for each file in `entries`, in the same order. `workers`: number of threads, by default one per core.

        Raises `CaptureError` for a file that cannot be read or has changed since it was listed.
        """
        files = [entry for entry in entries if entry.kind == "file"]
        if not files:
            return {}
        cached = self._load(root)
        missing = {file.key: file for file in files if file.key not in cached}
        if advance is not None:
            advance(sum(file.size for file in files if file.key not in missing))
        if not missing:
            return {file.path: cached[file.key].hex() for file in files}
        latest = time.time_ns() - SETTLED
        new = _hash_all(root, list(missing.values()), workers or len(os.sched_getaffinity(0)), advance)
        self._store(root, cached, {key: digest for key, digest in new.items() if max(key[3], key[4]) < latest})
        hashes = cached | new
        return {file.path: hashes[file.key].hex() for file in files}

    def of_file(self, path: Path) -> str:
        """Return the sha256 (hex) of one existing file; symlinks are followed."""
        path = path.resolve()
        found = list(walk(path.parent, skip=lambda name, _: name != path.name))
        return self.of(path.parent, found, workers=1)[path.name]

    def _load(self, root: Path) -> dict[Key, bytes]:
        """Return the cached hashes of the files below a directory."""
        data = self._facts.get(_KIND, _name(root))
        return dict(_decoder.decode(data)) if data is not None else {}

    def _store(self, root: Path, cached: dict[Key, bytes], new: dict[Key, bytes]) -> None:
        """Add hashes to those of a directory. A new hash replaces the hash of the same inode."""
        by_inode = {key[:2]: (key, digest) for key, digest in (*cached.items(), *new.items())}
        if new:
            self._facts.put(_KIND, _name(root), msgspec.msgpack.encode(list(by_inode.values())[-_MAX_FILES:]))


def _name(root: Path) -> str:
    return os.fsencode(root).hex()  # a path may not be UTF-8


class FileFacts(Generic[T]):
    """Small values that are read from files, kept by `Found.key` until the file changes. Only values that were used last are kept."""

    def __init__(self, facts: FactCache, kind: str, name: str, into: Any, read: Callable[[str], T]) -> None:
        """`name`: of this collection, such as the digest of a directory. `into`: the type of what `read` returns for a path."""
        self._facts, self._kind, self._name, self._read = facts, kind, name, read
        self._kept: dict[Key, T] = {}
        with contextlib.suppress(msgspec.MsgspecError):  # another version of repro-env may have written it
            self._kept = dict(codec.unpack(facts.get(kind, name) or b"\x90", list[tuple[Key, into]]))
        self._used: dict[Key, T] = {}
        self._latest = time.time_ns() - SETTLED

    def of(self, key: Key, path: str) -> T:
        """The value of the file with this key at this path."""
        value = self._used[key] = self._kept[key] if key in self._kept else self._read(path)
        return value

    def save(self) -> None:
        """Keep the values, but not those of files that had changed shortly before they were read."""
        used = [item for item in self._used.items() if max(item[0][3:]) < self._latest]
        if {key for key, _ in used} - self._kept.keys():
            self._facts.put(self._kind, self._name, msgspec.msgpack.encode(used))


def settled(entries: Sequence[Found]) -> bool:
    """Whether all files are old enough to be identified by their keys. Call this before reading them."""
    latest = time.time_ns() - SETTLED
    return all(entry.key[3] < latest and entry.key[4] < latest for entry in entries if entry.kind == "file")


def unchanged(root: Path, entries: Sequence[Found], *, since: int) -> bool:
    """Whether a listing, which began at `since` (ns), is still that of the directory, by the keys of its paths.

    A new path changes the times of its directory, or is a new name in `root`. False also if a directory had changed too
    shortly before.
    """
    latest = since - SETTLED
    try:
        if {entry.path for entry in entries if "/" not in entry.path} != set(os.listdir(root)):  # noqa: PTH208
            return False
        return all(
            key_of(os.lstat(f"{root}/{entry.path}")) == entry.key and (entry.kind != "dir" or max(entry.key[3:]) < latest)
            for entry in entries
        )
    except OSError:
        return False


def _hash_all(root: Path, files: list[Found], workers: int, advance: Advance | None) -> dict[Key, bytes]:
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    hashes: dict[Key, bytes] = {}
    batches = list(_batches(files))
    stopped = threading.Event()

    def hash_batch(batch: list[Found]) -> dict[Key, bytes]:
        return {file.key: _hash(root, file, stopped) for file in batch}

    pool = ThreadPoolExecutor(workers)  # hashlib and read release the interpreter lock
    try:
        for batch, digests in zip(batches, pool.map(hash_batch, batches), strict=True):
            hashes |= digests
            if advance is not None:
                advance(sum(file.size for file in batch))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
    return hashes


def _batches(files: list[Found]) -> Iterator[list[Found]]:
    """Yield each large file alone, the largest first so that the threads end together; then batches of small files."""
    yield from ([file] for file in sorted((file for file in files if file.size >= _LARGE), key=lambda file: -file.size))
    small = [file for file in files if file.size < _LARGE]
    yield from (small[start : start + _BATCH] for start in range(0, len(small), _BATCH))


def _hash(root: Path, file: Found, stopped: threading.Event) -> bytes:
    path = f"{root}/{file.path}"
    hasher = hashlib.sha256()
    with os_errors_as(CaptureError, "this file cannot be read", where=path, hint="make it readable, or exclude it"):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            remaining = file.size
            while remaining > 0 and not stopped.is_set() and (chunk := os.read(fd, BUFFER)):
                PATIENCE.check()
                hasher.update(chunk)
                remaining -= len(chunk)
            facts = os.fstat(fd)
        finally:
            os.close(fd)
    # ctime does not count: a new hard link (in an installer's cache) changes it, but not the content.
    if (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns) != file.key[:4]:
        what = "this file changed while it was being read"
        raise CaptureError(what, where=path, hint="stop the process that writes to it, or exclude the file")
    return hasher.digest()


def entries_of(found: Iterable[Found], hashes: Mapping[str, str], *, below: str = "") -> list[Entry]:
    """Return the paths of a listing as entries below a path of the image. Raises `CaptureError` for devices, sockets and pipes."""
    entries = []
    for item in found:
        path = f"{below}/{item.path}" if below else item.path
        if item.kind == "file":
            entries.append(Entry(path, "file", item.executable, item.size, hashes[item.path]))
        elif item.kind == "link":
            entries.append(Entry(path, "link", target=item.target))
        elif item.kind == "dir":
            entries.append(Entry(path, "dir"))
        else:
            raise CaptureError(
                "the path is not a file, directory or symlink", where=path, hint="remove it, or leave it out with --exclude"
            )
    return entries
