"""The directories of runs that commands have worked with: symlinks `runs/<sha256 of the path>`.

With this list, a weights file alone is enough to find its run, from any directory. The list cannot be made again, but
each command that works with a runs directory adds it again. A link's time is the time of the last such command.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

AWAY = 180 * 86400.0
"""Seconds for which a missing directory is reported, because it may be on a disk that is not mounted."""


class RunDirectories:
    """Safe to use from several processes: a link is never changed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, runs: Path) -> None:
        """Add a runs directory, existing or not. Errors are ignored, so that the command continues."""
        path = Path(os.path.realpath(runs))
        link = self._link(path)
        with contextlib.suppress(OSError):
            if path.is_relative_to(self._root.parent):  # directories inside the store are temporary
                return
            if not link.is_symlink():
                link.symlink_to(path)
            os.utime(link, follow_symlinks=False)

    def last_used(self, runs: Path) -> float:
        """Return when a command last worked with a directory, in seconds since 1970; 0 if it is not in the list."""
        try:
            return self._link(runs).lstat().st_mtime
        except OSError:
            return 0.0

    def paths(self) -> list[Path]:
        """Return all directories, sorted, whether they exist or not."""
        return sorted(link.readlink() for link in self._root.iterdir() if link.is_symlink())

    def _link(self, path: Path) -> Path:
        return self._root / hashlib.sha256(os.fsencode(path)).hexdigest()
