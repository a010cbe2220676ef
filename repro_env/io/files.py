"""List file trees, read files without following symlinks, write files atomically, lock files, and measure free disk space."""

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

from repro_env.io.patience import PATIENCE
from repro_env.schema.errors import ArtifactError, CaptureError, DiskError, os_errors_as

CHUNK = 1 << 20
"""Bytes per read."""
_ZEROS = bytes(CHUNK)
Kind = Literal["file", "dir", "link", "other"]
Key = tuple[int, int, int, int, int]
"""(device, inode, size, mtime in ns, ctime in ns). While the key stays the same, so does the content."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """A path in a file tree, with the facts from `lstat`."""

    path: str
    """Relative to the root of the walk, with "/" between parts."""
    kind: Kind
    """`other`: a device, socket or pipe."""
    executable: bool
    """Whether a file's owner may execute it."""
    size: int
    """Size of a file in bytes; 0 for other kinds."""
    target: str
    """Target of a symlink as written; empty for other kinds."""
    key: Key


def walk(root: Path, *, skip: Callable[[str, bool], bool] = lambda *_: False) -> Iterator[Found]:
    """Yield everything below `root`: each directory before its entries, and the entries sorted by name.

    If `skip(path, is_dir)` is true, the path and everything below it is omitted. Symlinks count as files, not directories.
    No file is opened and no symlink followed, except for `root`. Paths that disappear during the walk are omitted.
    Raises `PermissionError` for an unreadable directory, and `CaptureError` for a name that is not UTF-8.
    """
    pending = _listing(str(root), "")
    while pending:
        path, item = pending.pop()
        is_dir = item.is_dir(follow_symlinks=False)
        if skip(path, is_dir):
            continue
        if not (item.name.isascii() or _is_text(item.name)):
            raise CaptureError("this file name is not valid UTF-8", where=repr(os.fsencode(path)), hint="rename the file")
        try:
            entry = entry_at(item.path, path)
            if is_dir:
                pending += _listing(item.path, f"{path}/")
        except FileNotFoundError:
            continue
        yield entry


def _listing(directory: str, prefix: str) -> list[tuple[str, os.DirEntry[str]]]:
    """Return the paths and entries of a directory, the last name first, so that `pop` returns them in order."""
    with os.scandir(directory) as listing:
        return [(prefix + item.name, item) for item in sorted(listing, key=_by_name, reverse=True)]


_by_name = operator.attrgetter("name")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def entry_at(location: str, path: str) -> Found:
    """Return what is at a location, named `path`. Raises `OSError`, and `CaptureError` for a symlink target that is not UTF-8."""
    facts = os.lstat(location)
    size, mode = facts.st_size, facts.st_mode
    key = key_of(facts)
    kind = stat.S_IFMT(mode)
    if kind == stat.S_IFREG:
        return Found(path, "file", bool(mode & 0o100), size, "", key)
    if kind == stat.S_IFDIR:
        return Found(path, "dir", False, 0, "", key)
    if kind == stat.S_IFLNK:
        target = os.readlink(location)  # noqa: PTH115 - a path object takes longer
        if not _is_text(target):
            what = "the target of this symlink is not valid UTF-8"
            raise CaptureError(what, where=path, hint="remove it, or change its target")
        return Found(path, "link", False, 0, target, key)
    return Found(path, "other", False, 0, "", key)


def times_of(entries: Iterable[Found]) -> dict[str, int]:
    """Return when each file and directory was modified (ns), by path. A symlink has no time of its own for most programs."""
    return {entry.path: entry.key[3] for entry in entries if entry.kind in ("file", "dir")}


def fingerprint(entries: Iterable[Found]) -> str:
    """Return a digest (hex) of a listing. It changes with any path, kind, symlink target, executable bit or key of a file.

    The times of directories do not count, because bytecode that is written to them changes these.
    """
    rows = [
        (entry.path, entry.executable, entry.key) if entry.kind == "file" else (entry.path, entry.kind, entry.target)
        for entry in entries
    ]
    return hashlib.sha256(msgspec.msgpack.encode(rows)).hexdigest()


def atomic_write(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Replace a file atomically: readers see either the old or the new content, even after a crash. The umask sets its mode.

    Without `flush` the file may be incomplete after a power failure: use it only for content that readers can verify.
    """
    atomic_stream(path, (data,), len(data), flush=flush)


def atomic_stream(path: Path, chunks: Iterable[bytes], size: int = 0, *, flush: bool = True) -> None:
    """Replace a file atomically with the bytes of `chunks`. `size`: total bytes for error messages; 0 if unknown.

    If `chunks` raises an exception, the old file stays. The name of the temporary file is fixed, so that the next write
    reuses the file of a process that was killed.
    """
    temporary = path.parent / f".{path.name[:200]}.tmp"
    with room(path.parent, size):
        fd = _open_locked(temporary)
        try:
            os.ftruncate(fd, 0)
            for chunk in chunks:
                remaining = memoryview(chunk)
                while remaining:
                    remaining = remaining[os.write(fd, remaining) :]
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
        sync_directory(path.parent)


def _open_locked(path: Path) -> int:
    """Open a file for writing, create it if missing, and lock it against other writers."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            lock(fd)
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == os.fstat(fd).st_ino:
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # another writer has renamed or removed the file


def sync_directory(directory: Path) -> None:
    """Flush a directory to disk, so that a rename in it survives a power failure. Does nothing if the file system cannot."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def open_regular(path: Path | str, *, below: Path | None = None) -> int:
    """Open a regular file for reading; the caller closes the descriptor. Other kinds are never opened, so the call cannot hang.

    No symlink is followed: neither `path` itself, nor a directory between it and `below`, a trusted directory above it
    (default: the file's own directory). Raises `OSError`, whose `strerror` names what is there instead.
    """
    parts: tuple[Path | str, ...] = (path,) if below is None else Path(path).relative_to(below).parts
    handle = None if below is None else os.open(below, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number, part in enumerate(parts, 1):
            kind = stat.S_IFREG if number == len(parts) else stat.S_IFDIR
            # Checked before opening, since opening a device can have side effects.
            expect(os.stat(part, dir_fd=handle, follow_symlinks=False).st_mode, kind)
            flags = os.O_RDONLY | os.O_NONBLOCK if kind == stat.S_IFREG else os.O_PATH | os.O_DIRECTORY
            opened = os.open(part, os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=handle)
            if handle is not None:
                os.close(handle)
            handle = opened
            if part == "..":
                raise OSError(errno.EPERM, "it leads out of its directory")
        if handle is None:  # `path` is `below` itself
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        expect(os.fstat(handle).st_mode, stat.S_IFREG)
    except BaseException as error:
        if handle is not None:
            os.close(handle)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    return handle


def expect(mode: int, kind: int, where: str = "") -> None:
    """Raise `OSError` unless a mode is that of a regular file or of a directory (`kind`: S_IFREG or S_IFDIR)."""
    if stat.S_IFMT(mode) != kind:
        expected = "a regular file" if kind == stat.S_IFREG else "a directory"
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not {expected}", where or None)


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


def read_head(path: Path | str, most: int) -> bytes:
    """Return the first `most` bytes of an untrusted file; empty if it cannot be read or is not a regular file."""
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            return file.read(most) or b""
    except OSError:
        return b""


def may_exist(path: Path) -> bool:
    """Whether a path exists. Also true if this cannot be known, such as below a directory that this user may not enter."""
    try:
        return path.exists()
    except OSError:
        return True


def read_text(path: Path, most: int = 16 << 20) -> str:
    """The text of a small file; symlinks are followed. Empty if it cannot be read or has more than `most` bytes."""
    try:
        return read_regular(Path(os.path.realpath(path)), most).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def sha256_of(path: Path, *, below: Path | None = None) -> str:
    """Return the sha256 of a file in hex. Raises `OSError` as `open_regular`, also for a symlink."""
    hasher = hashlib.sha256()
    for chunk in chunks_of(path, below=below):
        hasher.update(chunk)
    return hasher.hexdigest()


def digest_of(path: Path, *, below: Path | None = None) -> str:
    """Return `sha256:<hex>` of a file; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return f"sha256:{sha256_of(path, below=below)}"
    return ""


def chunks_of(path: Path, *, below: Path | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file; its holes are not read. Raises `OSError` as `open_regular`, and as `Patience.check`."""
    with os.fdopen(open_regular(path, below=below), "rb", buffering=0) as file:
        handle, position = file.fileno(), 0
        for start, end in data_ranges(handle):
            while position < start:  # a hole
                PATIENCE.check()
                yield _ZEROS[: start - position]
                position += min(len(_ZEROS), start - position)
            os.lseek(handle, position, os.SEEK_SET)
            PATIENCE.check()
            while position < end and (chunk := file.read(min(CHUNK, end - position))):
                position += len(chunk)
                yield chunk
                PATIENCE.check()


def data_ranges(handle: int) -> Iterator[tuple[int, int]]:
    """Yield where an open file has data: start and end. It has holes between them. The last range has no end (`sys.maxsize`)."""
    facts = os.fstat(handle)
    if facts.st_blocks * 512 >= facts.st_size:  # no file with holes
        yield 0, sys.maxsize
        return
    end = 0
    while end < facts.st_size:
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
            end = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: there is a hole until the end. Other errors: the file system does not know holes.
            yield facts.st_size if error.errno == errno.ENXIO else end, sys.maxsize
            return
        yield start, end if end < facts.st_size else sys.maxsize


class Sized(Protocol):
    """The attributes of an entry that `FileContents` uses (`oci.entry.Entry`)."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


class FileContents:
    """Read the files of a directory, for entries whose paths start with the prefix `strip` (`oci.entry.Contents`).

    `keys`: by path relative to the directory, the key that each file had when it was hashed. A file whose key has changed
    before or during reading is refused, because results computed from the new bytes would be cached for the old ones.
    """

    def __init__(self, root: Path, strip: str = "", keys: Mapping[str, Key] | None = None) -> None:
        self._root = f"{root}/"
        self._strip = f"{strip.strip('/')}/" if strip.strip("/") else ""
        self._keys = keys or {}

    def chunks(self, entry: Sized) -> Iterator[bytes]:
        """Yield the bytes of a file. Raises `CaptureError` if its key has changed.

        Raises `ArtifactError` if it is missing, not a regular file, or longer than its entry's size.
        """
        if not entry.path.startswith(self._strip):
            raise ArtifactError(f"this path is not below {self._strip}", where=entry.path)
        path = self._root + entry.path[len(self._strip) :]
        key = self._keys.get(entry.path[len(self._strip) :])
        remaining = entry.size
        with os_errors_as(
            ArtifactError, "this file cannot be read", where=path, hint="it was changed or removed meanwhile; try again"
        ):
            # O_NONBLOCK: opening a named pipe that replaced the file must not block
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                _check_key(fd, key, path)
                # Its key shows that a file has not become longer, so its end need not be read.
                while (remaining or key is None) and (chunk := os.read(fd, min(CHUNK, remaining + 1))):
                    remaining -= len(chunk)
                    if remaining < 0:
                        what = "this file became longer while it was being read"
                        raise ArtifactError(what, where=path, hint="stop the process that writes to it, then try again")
                    yield chunk
                _check_key(fd, key, path)  # the caller checks the number of bytes
            finally:
                os.close(fd)


def _check_key(fd: int, key: Key | None, path: str) -> None:
    if key is not None and key_of(os.fstat(fd)) != key:
        what = "this file changed while it was captured"
        raise CaptureError(what, where=path, hint="stop the process that writes to it, then capture again")


def key_of(facts: os.stat_result) -> Key:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def keys_of(entries: Iterable[Found], below: str = "") -> dict[str, Key]:
    """Return the keys of the files in a listing, by path. `below` is prepended to each path."""
    return {below + entry.path: entry.key for entry in entries if entry.kind == "file"}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file `path`, after other processes have released it. It is created if missing, and stays on disk.

    The kernel releases the lock when the process ends.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock(fd)
        yield
    finally:
        os.close(fd)


def try_lock(fd: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file without waiting (flock(2)). Returns whether it is locked: another process may hold the lock."""
    try:
        lock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(fd: int, operation: int = fcntl.LOCK_EX) -> None:
    """Lock an open file (flock(2)). Raises `DiskError` if the file system has no locks, `BlockingIOError` as flock does.

    On NFS, the kernel locks the file on the server: for LOCK_EX it must be open for writing, for LOCK_SH for reading.
    """
    try:
        fcntl.flock(fd, operation)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise DiskError(
            f"the file system refuses to lock a file: {error.strerror}",
            where=os.readlink(f"/proc/self/fd/{fd}"),  # noqa: PTH115
            hint="use a directory on a local disk (REPRO_ENV_STORE, --runs DIR), or ask the administrators to mount it with locks "
            "(NFS: a running rpc.statd; Lustre: the option `flock`)",
        ) from None


def free(path: Path) -> tuple[int, int]:
    """Return the bytes and inodes available to this user at `path`, which need not exist.

    The number of inodes is `sys.maxsize` if the file system does not count them.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize, (facts.f_favail if facts.f_files else sys.maxsize)


@contextlib.contextmanager
def room(directory: Path, needed: int = 0) -> Iterator[None]:
    """Translate "no space left" and "quota exceeded" in the block to `DiskError`. `needed`: total bytes, 0 if unknown."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        size, inodes = free(directory)
        demand = f", {needed:,} bytes needed" if needed else ""
        if error.errno == errno.EDQUOT:
            what = f"the disk quota is exceeded{demand}"
        elif inodes == 0:
            what = "no more files can be created: the file system has no free inodes"
        else:
            what = f"not enough disk space: {size:,} bytes free{demand}"
        hint = "free some disk space there, or use a directory on another disk (for the store: REPRO_ENV_STORE)"
        raise DiskError(what, where=str(directory), hint=hint) from None


def remove_tree(path: Path) -> None:
    """Remove a directory and everything in it, including read-only directories. Does nothing if it does not exist."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        if os.path.lexists(path):
            remove_tree(path)  # another process is removing the same tree
    except PermissionError:
        path.chmod(0o700)
        for directory, names, _ in os.walk(path):
            for name in names:
                subdirectory = Path(directory, name)
                if not subdirectory.is_symlink():
                    subdirectory.chmod(0o700)
        shutil.rmtree(path)


def output_files() -> frozenset[tuple[int, int]]:
    """Return device and inode of the files that stdout and stderr lead to.

    The log of `exec … > log.txt` in the source is not part of it, and grows while the source is read.
    """
    own = set()
    for handle in (1, 2):
        with contextlib.suppress(OSError):
            facts = os.fstat(handle)
            if stat.S_ISREG(facts.st_mode):
                own.add((facts.st_dev, facts.st_ino))
    return frozenset(own)
