"""Scratch directories of runs, and removal of those that killed runs left behind.

A scratch directory is locked as long as a process of its run lives. If the lock is free, the directory is stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from repro_env.io import files
from repro_env.sandbox import filesystem

NAME = ".scratch"
"""Name in the run's directory. The work directory of an overlay must be on the same file system as its upper layer."""


class Scratch:
    """A private, locked directory for one run, which is removed at its end."""

    def __init__(self, path: Path) -> None:
        """Make and lock the directory. Raises `OSError`."""
        self.path = path
        unlocked = path.parent / f".new-{secrets.token_hex(8)}"  # other runs remove unlocked directories with the final name
        unlocked.mkdir(mode=0o700)
        self._lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unlocked.rename(path)

    def directory(self, name: str, mode: int = 0o755) -> Path:
        """Make a directory with this name, unless it exists. Returns its path."""
        path = self.path / name
        if not path.is_dir():
            path.mkdir()
            path.chmod(mode)
        return path

    def remove(self) -> None:
        files.remove_tree(self.path)
        os.close(self._lock)


def in_run_directory(directory: Path) -> Scratch:
    """Make the scratch directory in a run's directory, after removing stale ones of other runs."""
    with contextlib.suppress(OSError), os.scandir(directory.parent) as listing:
        for item in listing:
            if item.is_dir(follow_symlinks=False):
                remove_stale(Path(item.path, NAME))
    return Scratch(directory / NAME)


def in_run_and_on_local_disk(directory: Path, stack: contextlib.ExitStack) -> tuple[Scratch, Scratch]:
    """Make scratch directories in a run's directory and on a disk that supports an overlay's upper layer, until the end of `stack`.

    They are the same unless only $TMPDIR supports it.
    """
    own = in_run_directory(directory)
    stack.callback(own.remove)
    if choose_directory(directory) == directory:
        return own, own
    disk = in_temporary_directory()
    stack.callback(disk.remove)
    return own, disk


def in_temporary_directory() -> Scratch:
    """Make a scratch directory in $TMPDIR, after removing stale ones."""
    directory = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
    prefix = f"repro-env-{os.getuid()}-"
    with contextlib.suppress(OSError), os.scandir(directory) as listing:
        for item in listing:
            if item.name.startswith(prefix) and item.stat(follow_symlinks=False).st_uid == os.getuid():
                remove_stale(Path(item.path))
    return Scratch(directory / (prefix + secrets.token_hex(8)))


def choose_directory(directory: Path) -> Path:
    """The parent for large scratch files: the run's directory, or $TMPDIR if only that supports an overlay's upper layer."""
    table = filesystem.mounts()
    unfit = filesystem.NETWORK | {"overlay"}
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108
    if filesystem.kind(directory, table) not in unfit or filesystem.kind(temporary, table) in unfit | filesystem.MEMORY:
        return directory
    return temporary


def remove_stale(path: Path) -> None:
    """Remove a scratch directory unless it is locked or missing."""
    with contextlib.suppress(OSError), lock(path):
        files.remove_tree(path)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Lock a scratch directory while the block runs. Raises `OSError` if it is missing or its run is not over."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
