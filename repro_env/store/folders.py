"""Folders of specs that came packed or from a registry: `specs/<hex>/`, each as a capture leaves its own.

Named by the sha256 of what they were made from, so they can be made again, and removed when nothing uses them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from repro_env.io.files import locked, room
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp


class Folders:
    """A folder that is there was filled to its end. Its time is that of its last use."""

    def __init__(self, root: Path, *, locks: Path, temp: Temp, boot: Boot) -> None:
        self._root = root
        self._locks = locks
        self._temp = temp
        self._boot = boot

    def make(self, digest: str, fill: Callable[[Path], None], *, size: int = 0) -> Path:
        """The folder made from what `digest` names; `fill` writes what is in it, unless it is there.

        `size`: bytes, for messages. Raises `DiskError`, and what `fill` raises: then nothing is left behind.
        """
        name = hex_of(digest)
        folder, mark = self._root / name, f"specs-{name}"
        with room(self._root, size), locked(self._locks / mark):
            if folder.is_dir() and self._boot.seen(mark):
                with contextlib.suppress(OSError):
                    os.utime(folder)
                return folder
            # What an earlier boot wrote may not all have reached the disk.
            self._remove(folder)
            with self._temp.folder() as temporary:
                (temporary / "spec").mkdir(mode=0o700)
                fill(temporary / "spec")
                self._boot.see(mark)
                (temporary / "spec").rename(folder)
        return folder

    def remove(self, digest: str) -> None:
        """Remove a folder, if it is there."""
        name = hex_of(digest)
        with locked(self._locks / f"specs-{name}"):
            self._remove(self._root / name)

    def _remove(self, folder: Path) -> None:
        with self._temp.folder() as temporary, contextlib.suppress(FileNotFoundError):
            folder.rename(temporary / "old")
