"""Throw-away folders of a run, and clearing what killed runs left of theirs.

A scratch folder is locked as long as a process of its run lives, so one that can be locked is left over.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from repro_env.io import files
from repro_env.run import filesystem

NAME = ".scratch"
"""In the run's folder: the work side of an overlay has to be on the file system of its upper side."""


class Scratch:
    """A folder for one run, on a disk of this machine where there is one; gone at the end."""

    def __init__(self, path: Path) -> None:
        """Make `path`, private, and lock it. Raises `OSError`."""
        self.path = path
        young = path.parent / f".new-{secrets.token_hex(8)}"  # it gets its name once it is locked: others clear by name
        young.mkdir(mode=0o700)
        self._lock = os.open(young, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        young.rename(path)

    def folder(self, name: str, mode: int = 0o755) -> Path:
        """A new folder in it; the same one when asked again."""
        made = self.path / name
        if not made.is_dir():
            made.mkdir()
            made.chmod(mode)
        return made

    def remove(self) -> None:
        files.remove_tree(self.path)
        os.close(self._lock)


def beside(folder: Path) -> Scratch:
    """The scratch folder in a run's own folder, after clearing what killed runs left in theirs."""
    with contextlib.suppress(OSError), os.scandir(folder.parent) as listing:
        for item in listing:
            if item.is_dir(follow_symlinks=False):
                clear(Path(item.path, NAME))
    return Scratch(folder / NAME)


def local(folder: Path, own: Scratch) -> Scratch:
    """A scratch folder that an overlay takes as its upper side and that is no memory, if this machine has one.

    `folder` is the run's, `own` its scratch folder: the answer too when no other place is better.
    """
    return own if disk(folder) == folder else temporary()


def temporary() -> Scratch:
    """A scratch folder in $TMPDIR, after clearing what killed runs left there."""
    folder = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
    prefix = f"repro-env-{os.getuid()}-"
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for item in listing:
            if item.name.startswith(prefix) and item.stat(follow_symlinks=False).st_uid == os.getuid():
                clear(Path(item.path))
    return Scratch(folder / (prefix + secrets.token_hex(8)))


def disk(folder: Path) -> Path:
    """Where a run throws away: its own folder, or $TMPDIR when that is a disk that overlay takes and the folder's is not."""
    table = filesystem.mounts()
    unfit = filesystem.NETWORK | {"overlay"}
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
    if filesystem.kind(folder, table) not in unfit or filesystem.kind(temporary, table) in unfit | filesystem.MEMORY:
        return folder
    return temporary


def clear(path: Path) -> None:
    """Remove a scratch folder whose run is over; one in use, or none, is left alone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            files.remove_tree(path)
    finally:
        os.close(handle)
