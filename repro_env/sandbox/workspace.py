"""The workspace of a run: the source snapshot with the run's changes. Afterwards only the changes are kept.

Overlay keeps the two separate. If the kernel refuses overlay (runs on NFS or Lustre, or in a container), the snapshot is
copied before the run, and unchanged files are removed afterwards. The result of `harvest` is the same for both.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path

import msgspec

from repro_env.io import files
from repro_env.sandbox import kernel, overlay
from repro_env.schema.text import RelPath

_COPIED = ".copied"
"""File next to `files` that marks it as a copy of the snapshot. It lists the mount points that were made in the copy."""
_MAX_POINTS = 16 << 20
"""Bytes that are read of the list of mount points."""
_CHUNK = 1 << 20


class MountPoint(msgspec.Struct, frozen=True):
    """A path inside the workspace on which something will be mounted."""

    path: str
    """Relative to the workspace."""
    is_directory: bool


class OverlayWorkspace:
    """An overlay of the snapshot and the run's files."""

    means = "overlay"
    """The name of this way to mount the snapshot, for the record."""

    def __init__(self, snapshot: Path, upper: Path, *, work: Path, points: Path, needed: Sequence[MountPoint]) -> None:
        """`points` is an empty directory for the mount points: a separate layer, so that they do not become outputs."""
        self._lowers = (snapshot, points)
        self._upper = upper
        self._work = work
        self._needed = needed

    def prepare(self) -> None:
        """Make the mount points, before any namespace is entered."""
        make_mount_points(self._lowers[1], self._needed)

    def stack(self, target: Path) -> None:
        """Mount the tree at `target`. Raises `OSError` if the kernel refuses."""
        overlay.mount(target, self._lowers, upper=self._upper, work=self._work, throw_away=False)


class CopiedWorkspace:
    """A bind mount of a copy of the snapshot."""

    means = "copy"

    def __init__(self, snapshot: Path, upper: Path, *, needed: Sequence[MountPoint]) -> None:
        self._snapshot = snapshot
        self._upper = upper
        self._needed = needed

    def prepare(self) -> None:
        """Copy the snapshot, unless an earlier attempt to start this run did so. Raises `DiskError` if it does not fit."""
        marker = self._upper.parent / _COPIED
        if marker.exists():
            return
        with files.room(self._upper):
            copy_tree(self._snapshot, self._upper)
        made = make_mount_points(self._upper, self._needed)
        files.atomic_write(marker, msgspec.json.encode(made) + b"\n")

    def stack(self, target: Path) -> None:
        """Mount the copy at `target`. Raises `OSError` if the kernel refuses."""
        kernel.bind(str(self._upper), str(target), recursive=False)


Workspace = OverlayWorkspace | CopiedWorkspace
"""A way to mount the snapshot as a writable tree, with the changes in the run's directory."""


def make_mount_points(directory: Path, needed: Iterable[MountPoint]) -> list[str]:
    """Make all missing mount points and their parents. Returns the paths that were made, parents before children."""
    made: list[str] = []
    for point in sorted(needed, key=lambda point: point.path):
        parts = point.path.split("/")
        for depth in range(1, len(parts) + 1):
            path = directory.joinpath(*parts[:depth])
            if _is_directory(path):
                continue
            if depth < len(parts) or point.is_directory:
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
    """Copy directories, files and symlinks into an existing directory, with the files' modes and times."""
    for found in files.walk(source):
        copy = target / found.path
        if found.kind == "dir":
            copy.mkdir()
            copy.chmod(0o755)
        elif found.kind == "link":
            copy.symlink_to(found.target)
        elif found.kind == "file":
            copy_file(source / found.path, copy)


def copy_file(source: Path, target: Path, *, below: Path | None = None) -> None:
    """Copy a regular file with its mode and times. The copy shares blocks with the original if the disk supports it (copy_file_range(2)).

    `below` is as in `io.files.open_regular`. Raises `OSError`.
    """
    handle = files.open_regular(source, below=below)
    with os.fdopen(handle, "rb", buffering=0) as read, target.open("xb", buffering=0) as written:
        facts = os.fstat(read.fileno())
        _copy_bytes(read, written)
        os.fchmod(written.fileno(), stat.S_IMODE(facts.st_mode) | stat.S_IWUSR)
        os.utime(written.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _copy_bytes(source: FileIO, target: FileIO) -> None:
    try:
        while os.copy_file_range(source.fileno(), target.fileno(), _CHUNK):
            pass
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
            raise
    while chunk := source.read(_CHUNK):  # what is missing, if the file system refused
        view = memoryview(chunk)
        while view:
            view = view[target.write(view) :]


def harvest(upper: Path, snapshot: Path) -> tuple[str, ...]:
    """Leave only the files that the run made or changed in `upper`, the run's `files`. Returns the source files it removed, sorted.

    Removes whiteouts and extended attributes of overlay, files with the time, bytes and mode of the snapshot's (copied, or only
    opened for writing), and directories of the snapshot without changes. For a removed directory, all its files are returned.
    Can be called right after a run, or later for a run that was killed. A second call changes nothing. Raises `OSError`.
    """
    marker = upper.parent / _COPIED
    is_copy = os.path.lexists(marker)
    points = _points(marker) if is_copy else []
    for point in reversed(points):
        if not any((upper / above).is_symlink() for above in Path(point).parents):
            _remove_empty(upper / point)
    removed: set[str] = set()
    _harvest(upper, snapshot, "", removed, is_complete=is_copy)
    marker.unlink(missing_ok=True)
    return tuple(sorted(removed.difference(points)))


def _points(marker: Path) -> list[RelPath]:
    """Read the mount points that were made in a copied workspace. The list is not trusted. Raises `OSError`."""
    try:
        return msgspec.json.decode(files.read_regular(marker, _MAX_POINTS), type=list[RelPath])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OSError(errno.EINVAL, "this file is damaged: it is not a list of mount points", str(marker)) from None


def _harvest(upper: Path, snapshot: Path, directory: str, removed: set[str], *, is_complete: bool) -> None:
    """Harvest one directory of `upper`. `directory` is relative: empty, or with a slash at the end.

    `is_complete`: whether the run saw only the files in `upper`, so that all other files of the snapshot were removed.
    """
    current = upper / directory
    mode = current.stat().st_mode
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        current.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
    is_complete = _remove_attributes(current) or is_complete
    original = snapshot / directory
    names = sorted(item.name for item in current.iterdir())
    if is_complete and _is_directory(original):
        for name in {item.name for item in original.iterdir()}.difference(names):
            removed.update(_files_of(original / name, directory + name))
    for name in names:
        path = directory + name
        facts = (current / name).lstat()
        if stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0:  # a whiteout
            removed.update(_files_of(original / name, path))
            (current / name).unlink()
        elif stat.S_ISDIR(facts.st_mode):
            if not _is_directory(original / name):
                removed.update(_files_of(original / name, path))
            _harvest(upper, snapshot, path + "/", removed, is_complete=is_complete)
            if _is_directory(original / name):
                _remove_empty(current / name)
        else:
            if _is_directory(original / name):
                removed.update(_files_of(original / name, path))
            if stat.S_ISREG(facts.st_mode):
                disarm(current / name)
            if is_same(current / name, original / name):
                (current / name).unlink()


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _files_of(path: Path, name: str) -> list[str]:
    """The files of the snapshot at or below a removed path."""
    if _is_directory(path):
        return [f"{name}/{found.path}" for found in files.walk(path) if found.kind != "dir"]
    return [name] if os.path.lexists(path) else []


def _remove_attributes(path: Path) -> bool:
    """Remove overlay's attributes from a file or directory. Returns whether it was opaque, hiding the lower directory."""
    is_opaque = False
    with contextlib.suppress(OSError):  # the file system does not support extended attributes
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(overlay.XATTRS):
                is_opaque = is_opaque or (name.endswith(".opaque") and os.getxattr(path, name, follow_symlinks=False) == b"y")
                os.removexattr(path, name, follow_symlinks=False)
    return is_opaque


def disarm(path: Path) -> None:
    """Remove overlay's attributes and the set-user-ID and set-group-ID bits from a regular file."""
    _remove_attributes(path)
    mode = path.lstat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID):
        path.chmod(stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID))


def is_same(path: Path, original: Path) -> bool:
    """Whether a path is unchanged from `original`: a symlink by its target, a file by time, executable bit and bytes.

    The time counts because a file that a run writes is an output, even if its bytes are the same as before.
    """
    try:
        old = original.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    new = path.lstat()
    if stat.S_ISLNK(new.st_mode):
        return stat.S_ISLNK(old.st_mode) and path.readlink() == original.readlink()
    if not (stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode)):
        return False
    has_same_mode = (new.st_mode ^ old.st_mode) & stat.S_IXUSR == 0
    if new.st_size != old.st_size or new.st_mtime_ns != old.st_mtime_ns or not has_same_mode:
        return False
    if not new.st_mode & stat.S_IRUSR:
        path.chmod(stat.S_IMODE(new.st_mode) | stat.S_IRUSR)
    with path.open("rb", buffering=0) as new_file, original.open("rb", buffering=0) as old_file:
        while True:
            chunk = new_file.read(_CHUNK)
            if chunk != old_file.read(_CHUNK):
                return False
            if not chunk:
                return True


def _remove_empty(directory: Path) -> None:
    """Remove a directory or a file if it is empty. The file was a mount point."""
    if _is_directory(directory):
        with contextlib.suppress(OSError):
            directory.rmdir()
    elif directory.is_file() and not directory.stat().st_size:
        directory.unlink()
