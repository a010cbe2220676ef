"""Write and read the directory of a checkpoint atomically: it exists completely or not at all.

A checkpoint is written to a hidden directory, all files and directories are flushed to disk, and a rename makes it visible.
If the process is killed at any time, all previous checkpoints remain, and the next writer removes the hidden directory.
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
from io import BufferedReader, FileIO
from typing import Any, NamedTuple

from repro_env.checkpoint.errors import CheckpointError

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
_NAME = re.compile(r"([0-9]{6,})-step-([0-9]+)")
_HIDDEN = ".unfinished-"
_LOCK = ".lock"
_PIECE = 1 << 20
_LARGEST = 64 << 20
"""Largest size of a manifest or checksum file, in bytes."""


class File(NamedTuple):
    """The content of a file that was written or is expected."""

    sha256: str
    """Hexadecimal, without a prefix."""
    size: int


class Saved(NamedTuple):
    """The name of a checkpoint, parsed. A larger serial is more recent."""

    serial: int
    step: int
    name: str


class Writer:
    """A new file that is hashed while it is written. Has the methods of a file object that `torch.save` needs."""

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
        """Do nothing: `write` does not buffer."""

    def __enter__(self) -> Writer:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Close the file, and flush it to disk first unless there was an error."""
        try:
            if error is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def content(self) -> File:
        """Return what was written."""
        return File(self._hash.hexdigest(), self._size)


def write(path: str, chunks: Iterable[Any]) -> File:
    """Write a new file, and flush it to disk."""
    with Writer(path) as file:
        for chunk in chunks:
            file.write(chunk)
    return file.content()


def digest(path: str) -> File:
    """Return the digest and size of a file on disk. Raises `OSError`."""
    hasher, size = hashlib.sha256(), 0
    for piece in _pieces(path):
        hasher.update(piece)
        size += len(piece)
    return File(hasher.hexdigest(), size)


def read(path: str, expected: File) -> bytearray:
    """Return the content of a file. Raises `CheckpointError` if it differs from what was written."""
    try:
        size = os.stat(path).st_size
        if size != expected.size:
            raise CheckpointError(
                f"this file has {size} bytes, but {expected.size} bytes were written", where=path, hint=_DAMAGED
            )
        data = bytearray(size)
        with BufferedReader(open_regular(path)) as file:
            file.readinto(data)
    except OSError as error:
        raise CheckpointError(f"this file cannot be read: {error.strerror or error}", where=path) from error
    if hashlib.sha256(data).hexdigest() != expected.sha256:
        raise CheckpointError("this file changed after it was written: its sha256 differs", where=path, hint=_DAMAGED)
    return data


_DAMAGED = "use another checkpoint"


def open_regular(path: str, *, follow: bool = False) -> FileIO:
    """Open a regular file for reading. Raises `OSError` for other kinds of file, and for a symlink unless `follow`."""
    if not stat.S_ISREG(os.stat(path, follow_symlinks=follow).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    return FileIO(os.open(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC))


def small(path: str) -> bytes:
    """Return the content of a manifest or checksum file. Raises `OSError` as `open_regular`, and if it is too large."""
    with open_regular(path) as file:
        data = bytearray()
        while piece := file.read(_PIECE):
            data += piece
            if len(data) > _LARGEST:
                raise OSError(errno.EFBIG, f"it is larger than {_LARGEST:,} bytes", path)
    return bytes(data)


def _pieces(path: str) -> Iterator[bytes]:
    with open_regular(path, follow=True) as file:  # other programs may write symlinks
        yield from iter(lambda: file.read(_PIECE), b"")


def listed(directory: str) -> list[Saved]:
    """Return the checkpoints in a directory, the most recent first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted((Saved(int(match[1]), int(match[2]), match[0]) for match in matches if match), reverse=True)


def begin(directory: str) -> str:
    """Create a new hidden directory to write to."""
    # Without random numbers: a run records those that are drawn from the system.
    path = os.path.join(directory, f"{_HIDDEN}{os.getpid()}-{time.monotonic_ns():x}")
    os.mkdir(path)
    return path


def show(hidden: str, directory: str, serial: int, step: int) -> str:
    """Rename the hidden directory, which makes the checkpoint visible, and return its path.

    Raises `OSError` if there is already a checkpoint of this serial and step.
    """
    flush(hidden)
    path = os.path.join(directory, f"{serial:06d}-step-{step}")
    try:
        os.rename(hidden, path)
    except FileNotFoundError:
        # A network file system repeats the request if the answer was lost. The first request may have succeeded.
        if os.path.exists(hidden) or not os.path.exists(os.path.join(path, MANIFEST)):
            raise
    flush(directory)
    return path


def remove(path: str) -> None:
    """Remove a checkpoint. It is renamed to a hidden name first, so that an incomplete checkpoint is never visible."""
    directory, name = os.path.split(path)
    hidden = os.path.join(directory, f"{_HIDDEN}{os.getpid()}-{name}")
    try:
        os.rename(path, hidden)
    except FileNotFoundError:
        return
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(directory: str) -> None:
    """Remove the unfinished checkpoints of killed writers. The caller must hold the lock."""
    for name in os.listdir(directory):
        if name.startswith(_HIDDEN):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def flush(path: str) -> None:
    """Flush a file, or the names in a directory, to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that does not support it
            raise
    finally:
        os.close(fd)


def lock(directory: str) -> int:
    """Lock a directory against other writers until this process ends or the returned file descriptor is closed.

    Child processes do not inherit the lock, so that workers of a killed run do not block the next run.
    Raises `CheckpointError` if another process holds the lock.
    """
    fd = os.open(os.path.join(directory, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise CheckpointError(
                "another process writes checkpoints to this directory",
                where=directory,
                hint="end that process, or use another directory",
            ) from None
        raise CheckpointError(
            f"this directory cannot be locked: {error.strerror}", where=directory, hint="use a file system that supports locks"
        ) from error
    return fd


def seal(directory: str) -> None:
    """Flush all files of a directory that another program wrote, then write their checksums."""
    lines = []
    for path in _below(directory):
        flush(os.path.join(directory, path))
        lines.append(f"{digest(os.path.join(directory, path)).sha256}  {path}\n")
    hidden = os.path.join(directory, f".{SUMS}")
    if os.path.exists(hidden):
        os.unlink(hidden)
    write(hidden, ["".join(lines).encode()])
    os.rename(hidden, os.path.join(directory, SUMS))
    flush(directory)


def is_sealed(directory: str) -> bool:
    """Whether a directory has checksums and all its files match them."""
    try:
        lines = small(os.path.join(directory, SUMS)).decode().splitlines()
        return bool(lines) and all(digest(os.path.join(directory, line[66:])).sha256 == line[:64] for line in lines)
    except (OSError, UnicodeDecodeError):
        return False


def _below(directory: str) -> list[str]:
    """Return the sorted relative paths of the files in a directory, without the checksum file."""
    paths = [os.path.relpath(os.path.join(parent, name), directory) for parent, _, names in os.walk(directory) for name in names]
    return sorted(path for path in paths if path not in (SUMS, f".{SUMS}"))
