"""Marks for what was written or checked since the machine was started, with the time of its last use.

Flushing every file of an image to the disk would take longer than writing it. So nothing is flushed. What was written
before the last start of the machine is checked once before it is used, because the machine may have lost power.
"""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from pathlib import Path

_MOST = 64
"""Lines of a mark: the machines of a cluster that share a store, and earlier boots of each."""


class Boot:
    """Marks by name. A mark has a line for each machine, with the ID of the boot in which it was set; its time is the last use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @cached_property
    def _now(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return "unknown"

    def is_marked(self, name: str, key: str = "") -> bool:
        """Return whether the mark was set in this boot, with this key. If so, record a use."""
        try:
            is_marked = f"{self._now} {key}" in (self._directory / name).read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            return False
        if is_marked:
            with contextlib.suppress(OSError):
                os.utime(self._directory / name)  # written again, it would be empty for a moment for other processes
        return is_marked

    def mark(self, name: str, key: str = "") -> None:
        """Set the mark, and record a use."""
        path, line = self._directory / name, f"{self._now} {key}"
        try:
            others = [other for other in path.read_text(encoding="ascii").splitlines() if other != line]
        except (OSError, UnicodeDecodeError):
            others = []
        path.write_text("\n".join([line, *others[: _MOST - 1]]), encoding="ascii")

    def last_used(self, name: str) -> float:
        """Return the time of the last use in seconds since 1970; 0 without a mark."""
        try:
            return (self._directory / name).stat().st_mtime
        except OSError:
            return 0.0
