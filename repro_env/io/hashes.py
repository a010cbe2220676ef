"""sha256 of many files: on all cores, and only of those that were not hashed before.

A content is known by its file's `Found.key` (device, inode, size, mtime, ctime). Nobody can set ctime, so a
file with the same key has the same content, unless it was written again within one tick of the file system's
clock: what was changed less than `SETTLED` ago is therefore hashed, but not remembered.

A long list of files that was asked for before, with not one key changed, is known at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.io import hasher, process
from repro_env.io.files import Found, Key
from repro_env.model.errors import CaptureError
from repro_env.model.talk import Advance

if TYPE_CHECKING:
    import sqlite3

SETTLED = 2_000_000_000
"""Nanoseconds: the coarsest clock of a file system in use (FAT)."""
BUFFER = 1 << 18
_BIG = 1 << 20
_BATCH = 64
_FLOCK = 2_000
"""Small files that are worth a process; a list has to have more than twice as many."""
_HELPER = hasher.__file__
_KEPT = 2_000_000
"""Rows in the table; the oldest go first."""
_COLUMNS = "dev integer, ino integer, size integer, mtime integer, ctime integer"
_TABLE = f"create table if not exists hash ({_COLUMNS}, sha256 blob, unique (dev, ino))"
_MANY = 500
"""Files from which on a list is remembered as a whole."""
_LISTS = 24
"""Lists that are kept; the oldest go first."""
_LIST_TABLE = "create table if not exists list (keys blob primary key, sha256 blob)"


class FileHashes:
    """A cache of sha256 by `Found.key`, safe to share between processes. Losing it costs time, nothing else."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def of(
        self, root: Path, found: Sequence[Found], *, workers: int | None = None, advance: Advance | None = None
    ) -> dict[str, str]:
        """Path -> hex, for each file among `found`, in their order. `workers`: how many at a time, one per core unless given.

        Raises `CaptureError` for a file that cannot be read, or that is no longer the one found.
        """
        files = [one for one in found if one.kind == "file"]
        keys = _digest(files) if len(files) >= _MANY else b""
        listed = self._recall(keys, len(files))
        if listed:
            if advance is not None:
                advance(sum(one.size for one in files))
            return {one.path: listed[64 * place : 64 * place + 64] for place, one in enumerate(files)}
        known = self._load(files)
        todo = {one.key: one for one in files if one.key not in known}
        if advance is not None:
            advance(sum(one.size for one in files if one.key in known))
        youngest = time.time_ns() - SETTLED
        if todo:
            fresh = _hash_all(root, list(todo.values()), workers or len(os.sched_getaffinity(0)), advance)
            known.update(fresh)
            self._store([(key, digest) for key, digest in fresh.items() if max(key[3], key[4]) < youngest])
        if keys and all(max(key[3], key[4]) < youngest for key in todo):
            self._remember(keys, b"".join(known[one.key] for one in files))
        return {one.path: known[one.key].hex() for one in files}

    def _recall(self, keys: bytes, count: int) -> str:
        """The hashes of a whole list, one after the other in hex; empty when the list is a new one."""
        found: list[str] = []

        def recall(db: sqlite3.Connection) -> None:
            db.execute(_LIST_TABLE)
            for (digests,) in db.execute("select sha256 from list where keys = ?", (keys,)):
                if isinstance(digests, bytes) and len(digests) == 32 * count:
                    found.append(digests.hex())

        if keys:
            self._with_database(recall)
        return found[0] if found else ""

    def _remember(self, keys: bytes, digests: bytes) -> None:
        def remember(db: sqlite3.Connection) -> None:
            with db:
                db.execute(_LIST_TABLE)
                db.execute("insert or replace into list values (?, ?)", (keys, digests))
                db.execute("delete from list where rowid <= (select max(rowid) from list) - ?", (_LISTS,))

        self._with_database(remember)

    def _load(self, files: Sequence[Found]) -> dict[Key, bytes]:
        known: dict[Key, bytes] = {}
        wanted = (
            (_signed(dev), _signed(ino), size, _signed(mtime), ctime)
            for dev, ino, size, mtime, ctime in (one.key for one in files)
        )

        def load(db: sqlite3.Connection) -> None:
            db.execute(f"create temp table wanted ({_COLUMNS})")
            db.executemany("insert into wanted values (?, ?, ?, ?, ?)", wanted)
            rows = db.execute(
                "select hash.dev, hash.ino, hash.size, hash.mtime, hash.ctime, sha256 from wanted join hash using (dev, ino)"
                " where hash.size = wanted.size and hash.mtime = wanted.mtime and hash.ctime = wanted.ctime"
            )
            for dev, ino, size, mtime, ctime, digest in rows:
                if isinstance(digest, bytes) and len(digest) == 32:
                    known[(dev % 2**64, ino % 2**64, size, mtime, ctime)] = digest

        if files:
            self._with_database(load)
        return known

    def _store(self, fresh: Sequence[tuple[Key, bytes]]) -> None:
        rows = ((_signed(dev), _signed(ino), size, mtime, ctime, digest) for (dev, ino, size, mtime, ctime), digest in fresh)

        def store(db: sqlite3.Connection) -> None:
            with db:
                db.executemany("insert or replace into hash values (?, ?, ?, ?, ?, ?)", rows)
                db.execute("delete from hash where rowid <= (select max(rowid) from hash) - ?", (_KEPT,))

        if fresh:
            self._with_database(store)

    def _with_database(self, do: Callable[[sqlite3.Connection], None]) -> None:
        """What SQLite cannot do is left undone: the cache is then empty, or stays as it was."""
        import sqlite3

        try:
            with contextlib.closing(sqlite3.connect(self._database, timeout=30)) as db:
                db.execute("pragma temp_store = memory")
                db.execute("pragma synchronous = normal")
                db.execute(_TABLE)
                do(db)
        except sqlite3.OperationalError:
            return  # locked for long, no room, or no locks on this file system
        except sqlite3.DatabaseError:
            self._database.unlink(missing_ok=True)  # damaged


def settled(found: Sequence[Found]) -> bool:
    """Whether all files are old enough to be known by their keys. To be asked before they are read."""
    youngest = time.time_ns() - SETTLED
    return all(one.key[3] < youngest and one.key[4] < youngest for one in found if one.kind == "file")


def _digest(files: Sequence[Found]) -> bytes:
    """Of the keys of a list of files, in its order."""
    return hashlib.sha256(msgspec.msgpack.encode([one.key for one in files])).digest()


def _signed(number: int) -> int:
    """SQLite's integers are signed 64-bit; devices and inodes are unsigned, and so are nanoseconds after the year 2262."""
    return number - 2**64 if number >= 2**63 else number


def _hash_all(root: Path, files: list[Found], workers: int, advance: Advance | None) -> dict[Key, bytes]:
    batches = _batches(files)
    lock = threading.Lock()
    done: dict[Key, bytes] = {}
    failed: list[BaseException] = []

    def work() -> None:
        buffer = bytearray(BUFFER)
        while not failed:
            with lock:
                batch = next(batches, None)
            if batch is None:
                return
            done.update(_helped(root, batch) if len(batch) > _BATCH else {})
            for one in batch:
                if one.key not in done:
                    done[one.key] = _hash(root, one, buffer, failed)
            if advance is not None:
                with lock:
                    advance(sum(one.size for one in batch))

    def help_out() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    # hashlib and read let go of the interpreter lock: with large files threads do as well as processes, without their
    # start-up. A long list of small ones goes to helper processes, and the threads wait for these.
    small = len(files) <= _BATCH and sum(one.size for one in files) < _BIG
    threads = [threading.Thread(target=help_out, daemon=True) for _ in range(0 if small else workers - 1)]
    for thread in threads:
        thread.start()
    try:
        work()
    except BaseException as error:
        failed.append(error)
        raise
    finally:
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return done


def _batches(files: list[Found]) -> Iterator[list[Found]]:
    """The big ones first, each alone, so that no thread ends long after the others; then the small, as found."""
    yield from ([one] for one in sorted((one for one in files if one.size >= _BIG), key=lambda one: -one.size))
    small = [one for one in files if one.size < _BIG]
    count = _FLOCK if len(small) > 2 * _FLOCK else _BATCH
    yield from (small[start : start + count] for start in range(0, len(small), count))


def _helped(root: Path, batch: Sequence[Found]) -> dict[Key, bytes]:
    """sha256 of small files, by a process of its own. What it cannot read, or finds changed, is not among them."""
    words = [os.fsencode(os.path.abspath(root))]  # noqa: PTH100
    for one in batch:
        words += [b"%d" % one.size, os.fsencode(one.path)]
    try:
        done = process.run([sys.executable, "-I", "-S", _HELPER], stdin=b"".join(word + b"\0" for word in words))
    except OSError:
        return {}  # no room for one more process: it is done here
    if len(done.stdout) != len(batch) * hasher.ROW.size:
        return {}
    rows = zip(batch, hasher.ROW.iter_unpack(done.stdout), strict=True)
    return {one.key: digest for one, (digest, *facts) in rows if tuple(facts) == one.key[:4]}


def _hash(root: Path, one: Found, buffer: bytearray, failed: list[BaseException]) -> bytes:
    path = f"{root}/{one.path}"
    state = hashlib.sha256()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            left = one.size
            with memoryview(buffer) as view:
                while left > 0 and not failed and (count := os.readv(fd, [buffer])):
                    state.update(view[:count])
                    left -= count
            facts = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise CaptureError(f"cannot be read: {error.strerror}", where=path, hint="make it readable, or leave it out") from None
    # Not ctime: a hard link made elsewhere (by an installer's cache) changes it, and no byte.
    if (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns) != one.key[:4] and not failed:
        raise CaptureError("changed while it was being read", where=path, hint="stop what writes it, or leave it out")
    return state.digest()
