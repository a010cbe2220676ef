"""Which things were written, or checked, since the machine was started; and when each was used last.

Flushing every file of an image to the disk would cost more than writing it. So nothing is flushed, and what an
earlier boot wrote is checked once before it is used: the machine may have lost power.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import cached_property
from pathlib import Path

FRESH = 600.0
"""Seconds for which a use is not noted again."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Boot:
    """Marks by name, each with the boot that it was set in. A mark's time is that of the last use, to `FRESH` seconds."""

    def __init__(self, folder: Path, boot_file: Path = _BOOT) -> None:
        self._folder = folder
        self._file = boot_file

    @cached_property
    def _now(self) -> str:
        try:
            return self._file.read_text(encoding="ascii").strip()
        except OSError:
            return "unknown"

    def seen(self, name: str, key: str = "") -> bool:
        """Whether the mark was set in this boot, for a thing that had this key."""
        try:
            return (self._folder / name).read_text(encoding="ascii") == self._text(key)
        except (OSError, UnicodeDecodeError):
            return False

    def see(self, name: str, key: str = "") -> None:
        """Set the mark. The thing is used now."""
        (self._folder / name).write_text(self._text(key), encoding="ascii")

    def fresh(self, name: str) -> bool:
        """Whether the last use that is noted is a moment ago."""
        return abs(time.time() - self.used(name)) < FRESH

    def use(self, name: str) -> None:
        """Note that the thing is used now, unless that was noted a moment ago."""
        if not self.fresh(name):
            touch(self._folder / name)

    def used(self, name: str) -> float:
        """When it was used last, in seconds since 1970; 0 without a mark."""
        try:
            return (self._folder / name).stat().st_mtime
        except OSError:
            return 0.0

    def forget(self, name: str) -> None:
        """Remove the mark."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()

    def _text(self, key: str) -> str:
        return f"{self._now} {key}" if key else self._now


def touch(path: Path) -> None:
    """Set a file's time to now, where that can be done."""
    with contextlib.suppress(OSError):
        os.utime(path)


def touch_if_old(path: Path, mtime: float) -> None:
    """As `touch`, of a file whose time was `mtime`; nothing when that is a moment ago."""
    if abs(time.time() - mtime) >= FRESH:
        touch(path)
