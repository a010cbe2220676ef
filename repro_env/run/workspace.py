"""The workspace: the source snapshot below, the run's own files on top; afterwards only what the run changed stays.

By overlay the kernel keeps the two apart. Where it refuses (the runs folder on NFS, Lustre, inside a container),
the snapshot is copied first and what stayed the same is removed afterwards. `harvest` makes both look alike.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from repro_env.io import files
from repro_env.model.text import RelPath
from repro_env.run import kernel, overlay

_FICLONE = 0x40049409
_COPIED = ".copied"
"""Beside `files`: it started as a copy of the snapshot. Holds the mount points made in it."""
_MOST_POINTS = 16 << 20
"""Bytes of the list of mount points."""
_CHUNK = 1 << 20


class Point(msgspec.Struct, frozen=True):
    """A place inside the workspace that something else will be mounted on."""

    path: str
    """Relative to the workspace."""
    is_folder: bool


class Workspace(Protocol):
    """One way of having the snapshot as a tree that can be written, with the changes in the run's folder."""

    means: str

    def prepare(self) -> None:
        """What has to be done before any name space is entered."""
        ...

    def stack(self, target: Path) -> None:
        """Show the tree at `target`. Raises `OSError` when the kernel refuses."""
        ...


class OverlayWorkspace:
    """The snapshot under the run's files."""

    means = "overlay"

    def __init__(self, snapshot: Path, upper: Path, *, work: Path, points: Path, needed: Sequence[Point]) -> None:
        """`points`: an empty folder for the mount points, a layer of its own so that they are no output."""
        self._lowers = (snapshot, points)
        self._upper = upper
        self._work = work
        self._needed = needed

    def prepare(self) -> None:
        make_points(self._lowers[1], self._needed)

    def stack(self, target: Path) -> None:
        overlay.mount(target, self._lowers, upper=self._upper, work=self._work, throw_away=False)


class CopiedWorkspace:
    """A copy of the snapshot, bound."""

    means = "copy"

    def __init__(self, snapshot: Path, upper: Path, *, needed: Sequence[Point]) -> None:
        self._snapshot = snapshot
        self._upper = upper
        self._needed = needed

    def prepare(self) -> None:
        """Raises `DiskError` when the copy does not fit. A copy that an earlier attempt at this run made is used again."""
        marker = self._upper.parent / _COPIED
        if marker.exists():
            return
        with files.room(self._upper):
            copy_tree(self._snapshot, self._upper)
        made = make_points(self._upper, self._needed)
        files.atomic_write(marker, msgspec.json.encode(made) + b"\n")

    def stack(self, target: Path) -> None:
        kernel.bind(str(self._upper), str(target), recursive=False)


def make_points(folder: Path, needed: Iterable[Point]) -> list[str]:
    """Make each mount point that is not there, with its parents. Returns what was made, parents before children."""
    made: list[str] = []
    for point in sorted(needed, key=lambda point: point.path):
        parts = point.path.split("/")
        for depth in range(1, len(parts) + 1):
            path = folder.joinpath(*parts[:depth])
            if _is_folder(path):
                continue
            if depth < len(parts) or point.is_folder:
                if os.path.lexists(path):
                    path.unlink()
                path.mkdir(mode=0o755)
            elif path.exists():
                continue
            else:
                path.touch(0o644)
            made.append("/".join(parts[:depth]))
    return made


def copy_tree(source: Path, target: Path) -> None:
    """Copy folders, files and symlinks into an existing folder, with modes and times; shared blocks where the disk can."""
    for found in files.walk(source):
        here = target / found.path
        if found.kind == "dir":
            here.mkdir()
            here.chmod(0o755)
        elif found.kind == "link":
            here.symlink_to(found.target)
        elif found.kind == "file":
            copy_file(source / found.path, here)


def copy_file(source: Path, target: Path, *, below: Path | None = None) -> None:
    """Copy one regular file with its mode and times: by reference (FICLONE), else in the kernel, else through this process.

    `below`: as of `io.files.open_regular`. Raises `OSError`.
    """
    handle = files.open_regular(source, below=below)
    with os.fdopen(handle, "rb", buffering=0) as read, target.open("xb", buffering=0) as written:
        facts = os.fstat(read.fileno())
        try:
            fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())
        except OSError:
            _copy_bytes(read.fileno(), written.fileno())
        os.fchmod(written.fileno(), stat.S_IMODE(facts.st_mode) | stat.S_IWUSR)
        os.utime(written.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _copy_bytes(read: int, written: int) -> None:
    try:
        while os.copy_file_range(read, written, _CHUNK):
            pass
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
            raise
    while chunk := os.read(read, _CHUNK):
        view = memoryview(chunk)
        while view:
            view = view[os.write(written, view) :]


def harvest(upper: Path, snapshot: Path) -> tuple[str, ...]:
    """Leave in `upper` (the run's `files`) only what the run made or changed. Returns the source files it removed, sorted.

    Gone afterwards: what overlay writes for itself (devices that mean "removed", extended attributes), files with
    the time, bytes and mode of the snapshot's (not written, only opened for it or copied), folders of the snapshot
    with nothing new in them. What was removed as a folder is listed file by file. Right after a run, or later for a run that was killed; a second call finds
    nothing left to do, so the answer is the first one's. Raises `OSError`.
    """
    marker = upper.parent / _COPIED
    copied = os.path.lexists(marker)
    points = _points(marker) if copied else []
    for point in reversed(points):
        if not any((upper / above).is_symlink() for above in Path(point).parents):
            _remove_empty(upper / point)
    removed: set[str] = set()
    _settle(upper, snapshot, "", removed, alone=copied)
    marker.unlink(missing_ok=True)
    return tuple(sorted(removed.difference(points)))


def _points(marker: Path) -> list[RelPath]:
    """Mount points that were made in a copied workspace. Raises `OSError`; the list is not trusted."""
    try:
        return msgspec.json.decode(files.read_regular(marker, _MOST_POINTS), type=list[RelPath])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OSError(errno.EINVAL, "it is not a list of mount points", str(marker)) from None


def _settle(upper: Path, snapshot: Path, folder: str, removed: set[str], *, alone: bool) -> None:
    """One folder of `upper`; `folder` is empty or ends with a slash. `alone`: what is not here is not there at all."""
    here = upper / folder
    mode = here.stat().st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        here.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    alone = _clean(here) or alone
    there = snapshot / folder
    names = sorted(item.name for item in here.iterdir())
    if alone and _is_folder(there):
        for name in {item.name for item in there.iterdir()}.difference(names):
            removed.update(_files_of(there / name, folder + name))
    for name in names:
        path = folder + name
        facts = (here / name).lstat()
        if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:
            removed.update(_files_of(there / name, path))
            (here / name).unlink()
        elif stat.S_ISDIR(facts.st_mode):
            if not _is_folder(there / name):
                removed.update(_files_of(there / name, path))
            _settle(upper, snapshot, path + "/", removed, alone=alone)
            if _is_folder(there / name):
                _remove_empty(here / name)
        else:
            if _is_folder(there / name):
                removed.update(_files_of(there / name, path))
            if stat.S_ISREG(facts.st_mode):
                disarm(here / name)
            if is_same(here / name, there / name):
                (here / name).unlink()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _files_of(path: Path, name: str) -> list[str]:
    """The snapshot's files that a removed path stands for."""
    if _is_folder(path):
        return [f"{name}/{found.path}" for found in files.walk(path) if found.kind != "dir"]
    return [name] if os.path.lexists(path) else []


def _clean(path: Path) -> bool:
    """Remove overlay's own attributes from a file or folder. Returns whether it hid the lower folder of its name."""
    opaque = False
    with contextlib.suppress(OSError):  # a file system without extended attributes has none of overlay's
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(overlay.XATTRS):
                opaque = opaque or (name.endswith(".opaque") and os.getxattr(path, name, follow_symlinks=False) == b"y")
                os.removexattr(path, name, follow_symlinks=False)
    return opaque


def disarm(path: Path) -> None:
    """Take overlay's own attributes from a regular file, and the bits that make its program run as its owner."""
    _clean(path)
    mode = path.lstat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        path.chmod(stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID))


def is_same(path: Path, below: Path) -> bool:
    """Whether a path is what the snapshot (`below`) has there: symlink by target, file by time, mode and bytes.

    By its time too: what a run writes is its output, also where the very same file lay there before.
    """
    try:
        old = below.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    new = path.lstat()
    if stat.S_ISLNK(new.st_mode):
        return stat.S_ISLNK(old.st_mode) and path.readlink() == below.readlink()
    if not (stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode)):
        return False
    executable = (new.st_mode ^ old.st_mode) & stat.S_IXUSR == 0
    if new.st_size != old.st_size or new.st_mtime_ns != old.st_mtime_ns or not executable:
        return False
    if not new.st_mode & stat.S_IRUSR:
        path.chmod(stat.S_IMODE(new.st_mode) | stat.S_IRUSR)
    with path.open("rb", buffering=0) as one, below.open("rb", buffering=0) as other:
        while True:
            chunk = one.read(_CHUNK)
            if chunk != other.read(_CHUNK):
                return False
            if not chunk:
                return True


def _remove_empty(folder: Path) -> None:
    """Remove a folder with nothing in it, or an empty file that was a mount point."""
    if _is_folder(folder):
        with contextlib.suppress(OSError):
            folder.rmdir()
    elif folder.is_file() and not folder.stat().st_size:
        folder.unlink()
