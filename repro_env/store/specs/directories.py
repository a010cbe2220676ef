"""Directories of specs from bundle files or registries: `specs/<hex>/`, with the same content as after a capture.

A directory is named by the sha256 of its origin, so it can be made again, and removed if it is not used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from repro_env.io.files import locked, room
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp


class SpecDirectories:
    """The directories of specs. An existing one is complete; its time is the time of its last use."""

    def __init__(self, root: Path, *, locks: Path, temp: Temp, boot: Boot) -> None:
        self._root = root
        self._locks = locks
        self._temp = temp
        self._boot = boot

    def make(self, digest: str, fill: Callable[[Path], None], *, size: int = 0) -> Path:
        """Return the directory for a digest. If it is missing, `fill` writes its content.

        `size`: in bytes, for messages. Raises `DiskError` and what `fill` raises; then nothing is left behind.
        """
        name = hex_of(digest)
        directory, mark = self._root / name, f"specs-{name}"
        with room(self._root, size), locked(self._locks / mark):
            if directory.is_dir() and self._boot.is_marked(mark):
                with contextlib.suppress(OSError):
                    os.utime(directory)
                return directory
            # What was written before a restart may be incomplete on the disk.
            self._remove(directory)
            with self._temp.directory() as temporary:
                (temporary / "spec").mkdir(mode=0o700)
                fill(temporary / "spec")
                self._boot.mark(mark)
                (temporary / "spec").rename(directory)
        return directory

    def remove(self, digest: str) -> None:
        """Remove a directory if it is there."""
        name = hex_of(digest)
        with locked(self._locks / f"specs-{name}"):
            self._remove(self._root / name)

    def _remove(self, directory: Path) -> None:
        with self._temp.directory() as temporary, contextlib.suppress(FileNotFoundError):
            directory.rename(temporary / "old")
