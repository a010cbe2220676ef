"""Files: listing trees, reading without following links, writing at once or not at all, locks, free room."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import operator
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from repro_env.model.errors import ArtifactError, CaptureError, DiskError

CHUNK = 1 << 20
"""Bytes per read."""
Kind = Literal["file", "dir", "link", "other"]
Key = tuple[int, int, int, int, int]
"""(device, inode, size, mtime in ns, ctime in ns): while it stays, so does the content."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """One path of a tree, as `lstat` shows it."""

    path: str
    """Relative to the root that was walked, "/" between parts."""
    kind: Kind
    """`other`: a device, socket or pipe."""
    executable: bool
    """The owner's executable bit, of a file."""
    size: int
    """Bytes of a file, else 0."""
    target: str
    """Of a symlink, as it is written; else empty."""
    key: Key


def never(path: str, is_dir: bool) -> bool:  # noqa: ARG001
    """Skip nothing."""
    return False


def walk(root: Path, *, skip: Callable[[str, bool], bool] = never) -> Iterator[Found]:
    """Everything below `root`, each folder before what is in it, sorted by name within a folder.

    `skip(path, is_dir)` leaves a path out, and all below it; a symlink is never a folder. No file is opened
    and no symlink followed (but `root` itself may be one). What vanishes meanwhile is not listed. Raises
    `PermissionError` for a folder that cannot be read, `CaptureError` for a name that is not UTF-8 and not skipped.
    """
    levels = [_level(root, "", -1, 0)]
    try:
        items, prefix, fd = levels[-1]
        while True:
            if not items:
                _close(levels.pop())
                if not levels:
                    return
                items, prefix, fd = levels[-1]
                continue
            item = items.pop()
            path = prefix + item.name
            is_dir = item.is_dir(follow_symlinks=False)
            if skip(path, is_dir):
                continue
            if not (item.name.isascii() or _is_text(item.name)):
                raise CaptureError("has a name that is not UTF-8", where=repr(os.fsencode(path)), hint="rename it")
            try:
                found = _found(path, item, fd)
                below = _level(root, path, fd, len(levels)) if is_dir else None
            except FileNotFoundError:
                continue
            if below is not None:
                levels.append(below)
                items, prefix, fd = below
            yield found
    finally:
        for level in levels:
            _close(level)


_Level = tuple[list["os.DirEntry[str]"], str, int]
"""A folder on the way down: what is left of it, the start of its paths, and the folder itself, open, or -1."""
_HELD = 64
"""Folders held open at most: what is in them the kernel need not look for from the root."""
_by_name = operator.attrgetter("name")


def _level(root: Path, path: str, parent: int, depth: int) -> _Level:
    full = f"{root}/{path}" if path else str(root)
    fd = -1
    try:
        if depth < _HELD:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            near = parent >= 0
            fd = os.open(path.rpartition("/")[2] if near else full, flags, dir_fd=parent if near else None)
        with os.scandir(full if fd < 0 else fd) as listing:
            items = sorted(listing, key=_by_name, reverse=True)  # last first, so that `pop` gives them in order
    except BaseException as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, OSError):
            error.filename = full
        raise
    return items, f"{path}/" if path else "", fd


def _close(level: _Level) -> None:
    if level[2] >= 0:
        os.close(level[2])


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _found(path: str, item: os.DirEntry[str], folder: int) -> Found:
    facts = item.stat(follow_symlinks=False)
    size, mode = facts.st_size, facts.st_mode
    key = (facts.st_dev, facts.st_ino, size, facts.st_mtime_ns, facts.st_ctime_ns)
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFREG:
        return Found(path, "file", bool(mode & 0o100), size, "", key)
    if kind == stat.S_IFDIR:
        return Found(path, "dir", False, 0, "", key)
    if kind == stat.S_IFLNK:
        target = os.readlink(item.path, dir_fd=folder if folder >= 0 else None)
        if not _is_text(target):
            raise CaptureError("is a symlink whose target is not UTF-8", where=path, hint="remove it or point it elsewhere")
        return Found(path, "link", False, 0, target, key)
    return Found(path, "other", False, 0, "", key)


def fingerprint(found: Iterable[Found]) -> str:
    """Of a listing (hex): it stays while every path is what it was, and every file has the key that it had.

    Folders count by their paths alone: bytecode that comes and goes in them changes their times.
    """
    rows = [(one.path, one.executable, one.key) if one.kind == "file" else (one.path, one.kind, one.target) for one in found]
    return hashlib.sha256(msgspec.msgpack.encode(rows)).hexdigest()


def atomic_write(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Write a file at once or not at all: a reader, and a crash, see the old bytes or the new ones. Mode by the umask.

    Without `flush` the file may be torn after a power cut: only for what says itself whether it is whole.
    """
    atomic_stream(path, (data,), len(data), flush=flush)


def atomic_stream(path: Path, chunks: Iterable[bytes], size: int = 0, *, flush: bool = True) -> None:
    """As `atomic_write`, of a file that is not held whole. `size`: bytes in all, for messages; 0 when not known.

    An exception of `chunks` passes through, and the old file stays. The temporary file has a fixed name, so that
    the next write takes over what a killed one left.
    """
    temporary = path.parent / f".{path.name[:200]}.tmp"
    with room(path.parent, size):
        fd = _own(temporary)
        try:
            os.ftruncate(fd, 0)
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            if flush:
                os.fsync(fd)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(fd)
    if flush:
        sync_folder(path.parent)


def _own(path: Path) -> int:
    """Open a file to write, made when missing; nobody else who comes this way has it at the same time."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == os.fstat(fd).st_ino:
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the one before us renamed it or removed it


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the file system can."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def open_regular(path: Path, *, below: Path | None = None) -> int:
    """Open a regular file for reading; the caller closes the descriptor. Other kinds are never opened, so the call cannot hang.

    No symlink is followed: neither `path` itself, nor a directory between it and `below`, a trusted directory above it
    (default: the file's own directory). Raises `OSError`, whose `strerror` names what is there instead.
    """
    parts = (path.name,) if below is None else path.relative_to(below).parts
    handle = os.open(path.parent if below is None else below, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            kind = stat.S_IFREG if number == len(parts) else stat.S_IFDIR
            # Checked before opening, since opening a device can have side effects.
            expect(os.stat(part, dir_fd=handle, follow_symlinks=False).st_mode, kind)
            more = os.O_RDONLY | os.O_NONBLOCK if kind == stat.S_IFREG else os.O_PATH | os.O_DIRECTORY
            opened = os.open(part, os.O_NOFOLLOW | os.O_CLOEXEC | more, dir_fd=handle)
            os.close(handle)
            handle = opened
            if part == "..":
                raise OSError(errno.EPERM, "it leads out of its directory")
        expect(os.fstat(handle).st_mode, stat.S_IFREG)
    except BaseException as error:
        os.close(handle)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    return handle


def expect(mode: int, kind: int, where: str = "") -> None:
    """Raise `OSError` unless a mode is that of a regular file or of a directory (`kind`: S_IFREG or S_IFDIR)."""
    if stat.S_IFMT(mode) != kind:
        wanted = "a regular file" if kind == stat.S_IFREG else "a directory"
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not {wanted}", where or None)


_KINDS = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_regular(path: Path, most: int, *, below: Path | None = None) -> bytes:
    """The content of an untrusted file; at most `most` bytes. Raises `OSError` as `open_regular`."""
    with os.fdopen(open_regular(path, below=below), "rb", buffering=0) as file:
        data = bytearray()
        if os.fstat(file.fileno()).st_size <= most:
            while chunk := file.read(min(CHUNK, most + 1 - len(data))):
                data += chunk
            if len(data) <= most:
                return bytes(data)
    raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))


def sha256_of(path: Path, *, below: Path | None = None) -> str:
    """Hex, of a file's content. Raises `OSError` as `open_regular`, for a symlink too."""
    hasher = hashlib.sha256()
    fd = open_regular(path, below=below)
    try:
        while chunk := os.read(fd, CHUNK):
            hasher.update(chunk)
    finally:
        os.close(fd)
    return hasher.hexdigest()


class Sized(Protocol):
    """What `FileContents` has to know of an entry (`image.entry.Entry`)."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


class FileContents:
    """The bytes of files under a folder, for entries that lie below the prefix `strip` (`image.entry.Contents`).

    `keys`: of files by path relative to the folder, as they were when they were hashed. One that has another key by now,
    or gets one while it is read, is refused: what is computed from its bytes would be remembered as that of others.
    """

    def __init__(self, root: Path, strip: str = "", keys: Mapping[str, Key] | None = None) -> None:
        self._root = f"{root}/"
        self._strip = f"{strip.strip('/')}/" if strip.strip("/") else ""
        self._keys = keys or {}

    def chunks(self, entry: Sized) -> Iterator[bytes]:
        """Raises `ArtifactError` when the file is gone, a symlink, not a file, or longer than its entry says; `CaptureError` for another key."""
        if not entry.path.startswith(self._strip):
            raise ArtifactError(f"does not lie below {self._strip}", where=entry.path)
        path = self._root + entry.path[len(self._strip) :]
        key = self._keys.get(entry.path[len(self._strip) :])
        left = entry.size
        try:
            # O_NONBLOCK: a pipe that took the file's place must not hang us
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                _check_key(fd, key, path)
                while True:
                    asked = min(CHUNK, left + 1)
                    chunk = os.read(fd, asked)
                    left -= len(chunk)
                    if left < 0:
                        raise ArtifactError("became longer while it was being read", where=path, hint="stop what writes it")
                    if chunk:
                        yield chunk
                    if not chunk or (left == 0 and len(chunk) < asked):
                        _check_key(fd, key, path)
                        return  # at the end; whoever takes the bytes counts them
            finally:
                os.close(fd)
        except OSError as error:
            raise ArtifactError(
                f"cannot be read: {error.strerror}", where=path, hint="it was changed or removed meanwhile; try again"
            ) from None


def _check_key(fd: int, key: Key | None, path: str) -> None:
    if key is not None and _key(os.fstat(fd)) != key:
        raise CaptureError("changed while it was captured", where=path, hint="wait until nothing writes there, and capture again")


def _key(facts: os.stat_result) -> Key:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def keys_of(found: Iterable[Found], below: str = "") -> dict[str, Key]:
    """Of the files among what was found, by path; `below` stands before each."""
    return {below + one.path: one.key for one in found if one.kind == "file"}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; others wait. Made when missing, and left behind. Freed by the kernel when the process dies."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def free(path: Path) -> tuple[int, int]:
    """Bytes and inodes free for this user where `path` is or would be. `sys.maxsize` inodes where they are not counted."""
    while not path.exists() and path != path.parent:
        path = path.parent
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize, (facts.f_favail if facts.f_files else sys.maxsize)


@contextlib.contextmanager
def room(folder: Path, needed: int = 0) -> Iterator[None]:
    """Turn "no space" and "over quota" inside the block into `DiskError`. `needed`: bytes in all, 0 when not known."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        size, inodes = free(folder)
        wants = f", {needed:,} bytes needed" if needed else ""
        if error.errno == errno.EDQUOT:
            what = f"over the disk quota{wants}"
        elif inodes == 0:
            what = "no room for more files: the file system is out of inodes"
        else:
            what = f"no room left: {size:,} bytes free{wants}"
        hint = "free some room there, or put the store elsewhere with REPRO_ENV_STORE"
        raise DiskError(what, where=str(folder), hint=hint) from None


def remove_tree(path: Path) -> None:
    """Remove a folder and all below it, read-only folders too. One that is not there is fine."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        if os.path.lexists(path):
            remove_tree(path)  # somebody else is removing the same tree
    except PermissionError:
        path.chmod(0o700)
        for folder, names, _ in os.walk(path):
            for name in names:
                below = Path(folder, name)
                if not below.is_symlink():
                    below.chmod(0o700)
        shutil.rmtree(path)
