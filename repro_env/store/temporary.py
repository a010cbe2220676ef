"""Temporary directories that are removed even if their process is killed.

Each directory has a lock file next to it. The kernel releases the lock when the process dies, so any process that can
take the lock may remove the directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from repro_env.io.files import remove_tree

_LOCK = ".lock"
_TRIES = 1000


class Temp:
    """Creates temporary directories below one directory, which is created if it is missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """Create an empty directory with mode 0700, and remove it with its content at the end of the block."""
        directory, fd = self._locked()
        try:
            directory.mkdir(mode=0o700)
            yield directory
        finally:
            remove_tree(directory)
            Path(f"{directory}{_LOCK}").unlink(missing_ok=True)
            os.close(fd)
            with contextlib.suppress(OSError):
                self._root.rmdir()

    def _locked(self) -> tuple[Path, int]:
        """Return a new name for a directory, and its lock. Tries again if another process removes the empty root meanwhile."""
        for tries_left in reversed(range(_TRIES)):
            directory = self._root / secrets.token_hex(8)
            self._make_root()
            try:
                fd = os.open(f"{directory}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if not tries_left:
                    raise
                continue
            if _try_lock(fd, Path(f"{directory}{_LOCK}")):
                return directory, fd
            os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "the directory is removed as soon as it is created", str(self._root))

    def _make_root(self) -> None:
        try:
            self._root.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            # The path existed, but was removed before `mkdir` checked whether it is a directory.
            if self._root.is_symlink() or self._root.exists():
                raise

    def clean(self) -> None:
        """Remove the directories of dead processes."""
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._root.iterdir()):
                if path.suffix == _LOCK:
                    self._clean(path)
            with contextlib.suppress(OSError):
                self._root.rmdir()

    def _clean(self, lock: Path) -> None:
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if _try_lock(fd, lock):
                remove_tree(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _try_lock(fd: int, path: Path) -> bool:
    """Try to lock a file. Returns whether it is locked and still has its name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(fd).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
