"""The runs folders that commands ever worked with: `runs/<sha256 of the path>`, each file one path.

So a weights file alone leads to its run, from whatever folder it is asked. Nothing here can be made again, and nothing
is lost with it but that: a command that works with a runs folder notes it anew. A note's time is that of the last such
command, to some minutes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from repro_env.io.files import atomic_write
from repro_env.model.errors import DiskError
from repro_env.store.boot import touch_if_old

AWAY = 180 * 86400.0
"""Seconds for which a folder that is not there may be on a disk that is not; after that nobody is told of it each time."""


class Seen:
    """Safe to use from several processes: a note is written once and never changed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def see(self, runs: Path) -> None:
        """Note a runs folder, there or yet to be made. What cannot be written is left: the work that it is noted for goes on."""
        path = os.fsencode(os.path.realpath(runs))
        note = self._note(path)
        with contextlib.suppress(OSError):
            touch_if_old(note, note.stat().st_mtime)
            return
        if path.startswith(os.fsencode(self._root.parent) + b"/"):  # in the store: runs for a while only
            return
        with contextlib.suppress(OSError, DiskError):
            atomic_write(note, path + b"\n", flush=False)

    def last(self, runs: Path) -> float:
        """When a command worked with a folder last, in seconds since 1970; 0 for one that is not noted."""
        try:
            return self._note(os.fsencode(runs)).stat().st_mtime
        except OSError:
            return 0.0

    def _note(self, path: bytes) -> Path:
        return self._root / hashlib.sha256(path).hexdigest()

    def folders(self) -> list[Path]:
        """All of them, sorted, whether they are there now or not. A note that is torn is left out."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for note in self._root.iterdir():
                with contextlib.suppress(OSError):
                    path = note.read_bytes().removesuffix(b"\n")
                    if hashlib.sha256(path).hexdigest() == note.name:
                        found.append(Path(os.fsdecode(path)))
        return sorted(found)
