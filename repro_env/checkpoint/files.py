"""A checkpoint's folder on disk: there whole, or not at all.

It is written under a hidden name, every file and folder is flushed to the disk, and one rename shows it. A process that
is killed at any moment leaves the folders that were there before, and a hidden one that the next writer removes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import Any, NamedTuple

from repro_env.checkpoint.errors import CheckpointError

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
_NAME = re.compile(r"([0-9]{6,})-step-([0-9]+)")
_HIDDEN = ".unfinished-"
_LOCK = ".lock"
_PIECE = 1 << 20
_LARGEST = 64 << 20
"""Bytes of a manifest, or of sums, that are read."""


class File(NamedTuple):
    """What was written, or has to be there."""

    sha256: str
    """Bare hexadecimal."""
    size: int


class Saved(NamedTuple):
    """A checkpoint by its name alone; a larger serial is younger."""

    serial: int
    step: int
    name: str


class Writer:
    """A new file that is hashed as it is written. As much of a file object as `torch.save` needs."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        done = 0
        while done < len(view):
            done += os.write(self._fd, view[done:])
        self._size += len(view)
        return len(view)

    def flush(self) -> None:
        """Nothing is held back."""

    def finish(self) -> File:
        """Down to the disk; the file is closed then."""
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)
        return File(self._hash.hexdigest(), self._size)

    def give_up(self) -> None:
        os.close(self._fd)


def write(path: str, chunks: Iterable[Any]) -> File:
    """A new file of these bytes, flushed to the disk."""
    file = Writer(path)
    try:
        for chunk in chunks:
            file.write(chunk)
    except BaseException:
        file.give_up()
        raise
    return file.finish()


def digest(path: str) -> File:
    """Of a file as it is on disk. Raises `OSError`."""
    found, size = hashlib.sha256(), 0
    for piece in _pieces(path):
        found.update(piece)
        size += len(piece)
    return File(found.hexdigest(), size)


def read(path: str, expected: File) -> bytearray:
    """The whole file. Raises `CheckpointError` where it is not the expected one."""
    try:
        size = os.stat(path).st_size
        if size != expected.size:
            raise CheckpointError(f"has {size} bytes and had {expected.size} when it was written", where=path)
        data = bytearray(size)
        with opened(path) as file:
            view, done = memoryview(data), 0
            while done < size:
                count = file.readinto(view[done:])
                if not count:
                    break
                done += count
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror or error}", where=path) from error
    if hashlib.sha256(data).hexdigest() != expected.sha256:
        raise CheckpointError("is not what was written: its sha256 is another", where=path)
    return data


def opened(path: str, *, follow: bool = False) -> FileIO:
    """A regular file, opened for reading. Raises `OSError` for anything else, and for a symlink unless `follow`."""
    if not stat.S_ISREG(os.stat(path, follow_symlinks=follow).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return FileIO(os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC))


def small(path: str) -> bytes:
    """The content of a manifest or of sums. Raises `OSError` as `opened`, and for one that is too large."""
    with opened(path) as file:
        data = bytearray()
        while piece := file.read(_PIECE):
            data += piece
            if len(data) > _LARGEST:
                raise OSError(errno.EFBIG, f"it is larger than {_LARGEST:,} bytes", path)
    return bytes(data)


def _pieces(path: str) -> Iterator[bytes]:
    with opened(path, follow=True) as file:  # files of another program may be symlinks
        while True:
            piece = file.read(_PIECE)
            if not piece:
                return
            yield piece


def listed(folder: str) -> list[Saved]:
    """The checkpoints in a folder, youngest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [(name, _NAME.fullmatch(name)) for name in names]
    return sorted((Saved(int(match[1]), int(match[2]), name) for name, match in found if match), reverse=True)


def name(serial: int, step: int) -> str:
    return f"{serial:06d}-step-{step}"


def begin(folder: str) -> str:
    """A new hidden folder to write into."""
    # Not from the system's randomness: a run is asked what it took from there.
    path = os.path.join(folder, f"{_HIDDEN}{os.getpid()}-{time.monotonic_ns():x}")
    os.mkdir(path)
    return path


def show(hidden: str, folder: str, serial: int, step: int) -> str:
    """Make what was written a checkpoint. The path. Raises `OSError` where the serial is taken."""
    flush(hidden)
    path = os.path.join(folder, name(serial, step))
    try:
        os.rename(hidden, path)
    except FileNotFoundError:
        # A file system on a network asks again when the answer was lost: the second time, it has been done.
        if os.path.exists(hidden) or not os.path.exists(os.path.join(path, MANIFEST)):
            raise
    flush(folder)
    return path


def drop(hidden: str) -> None:
    """Give up what was begun; the next writer removes what is left of it."""
    shutil.rmtree(hidden, ignore_errors=True)


def remove(folder: str, name: str) -> None:
    """Take a checkpoint away: hidden first, so that no half of it is ever seen."""
    hidden = os.path.join(folder, f"{_HIDDEN}{os.getpid()}-{name}")
    try:
        os.rename(os.path.join(folder, name), hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(folder: str) -> None:
    """Remove what a killed writer left. Only with the lock held: then nobody else is writing."""
    for name in os.listdir(folder):
        if name.startswith(_HIDDEN):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def flush(folder: str) -> None:
    """The names in a folder, down to the disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that knows no such thing
            raise
    finally:
        os.close(fd)


def lock(folder: str) -> int:
    """Be the only writer of a folder, for as long as this process lives or the descriptor is open.

    A lock of the process: children do not have it, so that workers of a killed run do not keep the next one out.
    Raises `CheckpointError` where another process has it.
    """
    fd = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise CheckpointError(
                "another process writes checkpoints here", where=folder, hint="end it, or give this one a folder of its own"
            ) from None
        raise CheckpointError(
            f"cannot be locked: {error.strerror}", where=folder, hint="take a file system that has locks"
        ) from error
    return fd


def seal(folder: str) -> None:
    """Write the sums of all files of a folder that another program has made, after they are down on the disk."""
    lines = []
    for path in _below(folder):
        _sync(os.path.join(folder, path))
        lines.append(f"{digest(os.path.join(folder, path)).sha256}  {path}\n")
    hidden = os.path.join(folder, f".{SUMS}")
    if os.path.exists(hidden):
        os.unlink(hidden)
    write(hidden, ["".join(lines).encode()])
    os.rename(hidden, os.path.join(folder, SUMS))
    flush(folder)


def sealed(folder: str) -> bool:
    """Whether a folder has sums, and all its files are those."""
    try:
        lines = small(os.path.join(folder, SUMS)).decode().splitlines()
        return bool(lines) and all(digest(os.path.join(folder, line[66:])).sha256 == line[:64] for line in lines)
    except (OSError, UnicodeDecodeError):
        return False


def _below(folder: str) -> list[str]:
    """Files of a folder, relative and sorted, without the sums."""
    found = [os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names]
    return sorted(path for path in found if path not in (SUMS, f".{SUMS}"))


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
