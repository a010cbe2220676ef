"""The directories of runs that commands have worked with: `runs/<sha256 of the path>`, each file with one path.

With this list, a weights file alone is enough to find its run, from any directory. The list cannot be made again, but
each command that works with a runs directory adds it again. A file's time is the time of the last such command, to some
minutes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from repro_env.io.files import atomic_write
from repro_env.schema.errors import DiskError
from repro_env.store.bootmarks import touch_if_old

AWAY = 180 * 86400.0
"""Seconds for which a missing directory is reported, because it may be on a disk that is not mounted."""


class RunDirectories:
    """Safe to use from several processes: a file is written once and never changed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, runs: Path) -> None:
        """Add a runs directory, existing or not. Errors are ignored, so that the command continues."""
        path = os.fsencode(os.path.realpath(runs))
        file = self._file(path)
        with contextlib.suppress(OSError):
            touch_if_old(file, file.stat().st_mtime)
            return
        if path.startswith(os.fsencode(self._root.parent) + b"/"):  # directories inside the store are temporary
            return
        with contextlib.suppress(OSError, DiskError):
            atomic_write(file, path + b"\n", flush=False)

    def last_used(self, runs: Path) -> float:
        """Return when a command last worked with a directory, in seconds since 1970; 0 if it is not in the list."""
        try:
            return self._file(os.fsencode(runs)).stat().st_mtime
        except OSError:
            return 0.0

    def _file(self, path: bytes) -> Path:
        return self._root / hashlib.sha256(path).hexdigest()

    def paths(self) -> list[Path]:
        """Return all directories, sorted, whether they exist or not. Damaged files are left out."""
        directories = []
        with contextlib.suppress(FileNotFoundError):
            for file in self._root.iterdir():
                with contextlib.suppress(OSError):
                    path = file.read_bytes().removesuffix(b"\n")
                    if hashlib.sha256(path).hexdigest() == file.name:
                        directories.append(Path(os.fsdecode(path)))
        return sorted(directories)
