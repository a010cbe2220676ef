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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.io import database
from repro_env.io.files import Found, Key, walk
from repro_env.schema.errors import CaptureError
from repro_env.schema.progress import Advance

if TYPE_CHECKING:
    import sqlite3

SETTLED = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT)."""
BUFFER = 1 << 18
_LARGE = 1 << 20
"""Size in bytes from which a file is hashed on its own."""
_BATCH = 64
"""Number of small files that a thread takes at once."""
_MAX_FILES = 2_000_000
"""Files of a directory that are cached at most."""
_MAX_DIRECTORIES = 500
"""Rows in the table. The oldest are removed first."""
_TABLE = "create table if not exists directory (root blob primary key, hashes blob)"


_decoder = msgspec.msgpack.Decoder(list[tuple[Key, bytes]])


class FileHashes:
    """A cache of sha256 digests by directory and `Found.key`. Several processes can share it, and it can be deleted at any time."""

    def __init__(self, database: Path) -> None:
        self._database = database

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
        hashes: dict[Key, bytes] = {}

        def load(db: sqlite3.Connection) -> None:
            for (data,) in db.execute("select hashes from directory where root = ?", (os.fsencode(root),)):
                with contextlib.suppress(msgspec.DecodeError):
                    hashes.update(_decoder.decode(data))

        self._with_database(load)
        return hashes

    def _store(self, root: Path, cached: dict[Key, bytes], new: dict[Key, bytes]) -> None:
        """Add hashes to those of a directory. A new hash replaces the hash of the same inode."""
        by_inode = {key[:2]: (key, digest) for key, digest in (*cached.items(), *new.items())}
        data = msgspec.msgpack.encode(list(by_inode.values())[-_MAX_FILES:])

        def store(db: sqlite3.Connection) -> None:
            with db:
                db.execute("insert or replace into directory values (?, ?)", (os.fsencode(root), data))
                db.execute("delete from directory where rowid <= (select max(rowid) from directory) - ?", (_MAX_DIRECTORIES,))

        if new:
            self._with_database(store)

    def _with_database(self, action: Callable[[sqlite3.Connection], None]) -> None:
        def act(db: sqlite3.Connection) -> None:
            db.execute(_TABLE)
            action(db)

        database.use(self._database, act, timeout=30)


def settled(entries: Sequence[Found]) -> bool:
    """Whether all files are old enough to be identified by their keys. Call this before reading them."""
    latest = time.time_ns() - SETTLED
    return all(entry.key[3] < latest and entry.key[4] < latest for entry in entries if entry.kind == "file")


def _hash_all(root: Path, files: list[Found], workers: int, advance: Advance | None) -> dict[Key, bytes]:
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
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            remaining = file.size
            while remaining > 0 and not stopped.is_set() and (chunk := os.read(fd, BUFFER)):
                hasher.update(chunk)
                remaining -= len(chunk)
            facts = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        what = f"this file cannot be read: {error.strerror}"
        raise CaptureError(what, where=path, hint="make it readable, or exclude it") from None
    # ctime does not count: a new hard link (in an installer's cache) changes it, but not the content.
    if (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns) != file.key[:4]:
        what = "this file changed while it was being read"
        raise CaptureError(what, where=path, hint="stop the process that writes to it, or exclude the file")
    return hasher.digest()
