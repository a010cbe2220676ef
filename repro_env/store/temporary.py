"""Temporary directories that are removed even if their process is killed.

Each directory has a lock file next to it. The kernel releases the lock when the process dies, so any process of the same
machine that can take the lock may remove the directory. On a shared file system, locks may hold only on one machine, so the names
contain that of the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from repro_env.io.files import remove_tree, try_lock

_PREFIX = f".temp-{hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]}-"
_LOCK = ".lock"


class Temp:
    """Creates temporary directories in an existing directory, next to its other content."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def directory(self) -> Iterator[Path]:
        """Create an empty directory with mode 0700, and remove it with its content at the end of the block."""
        while True:
            directory = self._root / f"{_PREFIX}{secrets.token_hex(8)}"
            lock = Path(f"{directory}{_LOCK}")
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if _try_lock(fd, lock):
                break
            os.close(fd)  # `clean` of another process has removed the lock file meanwhile
        try:
            directory.mkdir(mode=0o700)
            yield directory
        finally:
            remove_tree(directory)
            lock.unlink(missing_ok=True)
            os.close(fd)

    def clean(self) -> None:
        """Remove the directories of dead processes."""
        for lock in self._root.glob(f"{_PREFIX}*{_LOCK}"):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
                try:
                    if _try_lock(fd, lock):
                        remove_tree(lock.with_suffix(""))
                        lock.unlink(missing_ok=True)
                finally:
                    os.close(fd)


def _try_lock(fd: int, path: Path) -> bool:
    """Try to lock a file. Returns whether it is locked and still has its name."""
    try:
        return try_lock(fd) and path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
