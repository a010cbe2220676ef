"""The directories of runs that commands have worked with: symlinks `runs/<sha256 of the path>`.

With this list, a weights file alone is enough to find its run, from any directory. The list cannot be made again, but
each command that works with a runs directory adds it again. A link's time is the time of the last such command.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_SOURCES = ".sources"
"""The suffix of a file with the digests of source trees, next to a link."""
AWAY = 180 * 86400.0
"""Seconds for which a missing directory is reported, because it may be on a disk that is not mounted."""


class RunDirectories:
    """Safe to use from several processes: a link is never changed, and digests are appended."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, runs: Path, sources: Iterable[str] = ()) -> None:
        """Add a runs directory, existing or not, and the source trees of a run that starts in it.

        Errors are ignored, so that the command continues.
        """
        path = Path(os.path.realpath(runs))
        link = self._link(path)
        with contextlib.suppress(OSError):
            if path.is_relative_to(self._root.parent):  # directories inside the store are temporary
                return
            if not link.is_symlink():
                link.symlink_to(path)
            os.utime(link, follow_symlinks=False)
            if sources:
                with link.with_suffix(_SOURCES).open("a", encoding="ascii") as file:
                    file.write("".join(f"{digest}\n" for digest in sources))

    def sources(self, runs: Path) -> list[str]:
        """Return the source trees of all runs that were started in a directory, including those that were removed."""
        try:
            return self._link(runs).with_suffix(_SOURCES).read_text(encoding="ascii").split()
        except FileNotFoundError:
            return []

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
