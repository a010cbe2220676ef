"""Temporary folders that do not outlive their process, however it dies.

Each has a lock file beside it. The kernel drops the lock with the process, so whoever can take it may remove the folder.
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
    """Makes temporary folders below one folder, which is made when missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A new, empty folder, mode 0700, removed at the end with all that is still in it."""
        folder, fd = self._locked()
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            remove_tree(folder)
            Path(f"{folder}{_LOCK}").unlink(missing_ok=True)
            os.close(fd)
            with contextlib.suppress(OSError):
                self._root.rmdir()

    def _locked(self) -> tuple[Path, int]:
        """A name for a folder, and its lock, held. Other processes remove the root as soon as it is empty: then again."""
        for left in reversed(range(_TRIES)):
            folder = self._root / secrets.token_hex(8)
            self._make_root()
            try:
                fd = os.open(f"{folder}{_LOCK}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if not left:
                    raise
                continue
            if _held(fd, Path(f"{folder}{_LOCK}")):
                return folder, fd
            os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "it goes as soon as it is made", str(self._root))

    def _make_root(self) -> None:
        try:
            self._root.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            # It was there, and gone when `mkdir` looked whether it is a folder.
            if self._root.is_symlink() or self._root.exists():
                raise

    def clean(self) -> None:
        """Remove what dead processes left."""
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
            if _held(fd, lock):
                remove_tree(lock.with_suffix(""))
                lock.unlink(missing_ok=True)
        finally:
            os.close(fd)


def _held(fd: int, path: Path) -> bool:
    """Take the lock if it is free and the file still has its name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return path.stat().st_ino == os.fstat(fd).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
