"""Marks for what was written or checked since the machine was started, with the time of its last use.

Flushing every file of an image to the disk would take longer than writing it. So nothing is flushed. What was written
before the last start of the machine is checked once before it is used, because the machine may have lost power.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import cached_property
from pathlib import Path

FRESH = 600.0
"""Seconds after a recorded use in which further uses are not recorded."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Boot:
    """Marks by name. A mark holds the ID of the boot in which it was set; its time is the last use, to `FRESH` seconds."""

    def __init__(self, directory: Path, boot_file: Path = _BOOT) -> None:
        self._directory = directory
        self._file = boot_file

    @cached_property
    def _now(self) -> str:
        try:
            return self._file.read_text(encoding="ascii").strip()
        except OSError:
            return "unknown"

    def is_marked(self, name: str, key: str = "") -> bool:
        """Return whether the mark was set in this boot, with this key."""
        try:
            return (self._directory / name).read_text(encoding="ascii") == self._text(key)
        except (OSError, UnicodeDecodeError):
            return False

    def mark(self, name: str, key: str = "") -> None:
        """Set the mark, and record a use."""
        (self._directory / name).write_text(self._text(key), encoding="ascii")

    def used_recently(self, name: str) -> bool:
        """Return whether a use was recorded in the last `FRESH` seconds."""
        return abs(time.time() - self.last_used(name)) < FRESH

    def note_use(self, name: str) -> None:
        """Record a use, unless one was recorded in the last `FRESH` seconds."""
        if not self.used_recently(name):
            touch(self._directory / name)

    def last_used(self, name: str) -> float:
        """Return the time of the last use in seconds since 1970; 0 without a mark."""
        try:
            return (self._directory / name).stat().st_mtime
        except OSError:
            return 0.0

    def forget(self, name: str) -> None:
        """Remove the mark."""
        with contextlib.suppress(OSError):
            (self._directory / name).unlink()

    def _text(self, key: str) -> str:
        return f"{self._now} {key}" if key else self._now


def touch(path: Path) -> None:
    """Set a file's time to now, if that is permitted."""
    with contextlib.suppress(OSError):
        os.utime(path)


def touch_if_old(path: Path, mtime: float) -> None:
    """Set a file's time to now, unless its time `mtime` is at most `FRESH` seconds ago."""
    if abs(time.time() - mtime) >= FRESH:
        touch(path)
