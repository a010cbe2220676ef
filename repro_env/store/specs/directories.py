"""Directories of specs from bundle files or registries: `specs/<hex>/`, with the same content as after a capture.

A directory is named by the sha256 of its origin, so it can be made again, and removed if it is not used.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repro_env.io.files import locked, room
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp


class SpecDirectories:
    """The directories of specs. An existing one is complete."""

    def __init__(self, store: Path, *, temp: Temp, boot: Boot) -> None:
        self._root = store / "specs"
        self._locks = store / "locks"
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
                return directory
            with self._temp.directory() as temporary:
                if directory.is_dir():  # what was written before a restart may be incomplete on the disk
                    directory.rename(temporary / "old")
                (temporary / "spec").mkdir(mode=0o700)
                fill(temporary / "spec")
                self._boot.mark(mark)
                (temporary / "spec").rename(directory)
        return directory
