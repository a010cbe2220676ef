"""Which things were written, or checked, since the machine was started.

Flushing every file of an image to the disk would cost more than writing it. So nothing is flushed, and what an
earlier boot wrote is checked once before it is used: the machine may have lost power.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Boot:
    """Marks by name, each with the boot that it was set in."""

    def __init__(self, folder: Path, boot_file: Path = _BOOT) -> None:
        self._folder = folder
        self._file = boot_file

    @cached_property
    def _now(self) -> str:
        try:
            return self._file.read_text(encoding="ascii").strip()
        except OSError:
            return "unknown"

    def seen(self, name: str) -> bool:
        """Whether the mark was set in this boot."""
        try:
            return (self._folder / name).read_text(encoding="ascii") == self._now
        except (OSError, UnicodeDecodeError):
            return False

    def see(self, name: str) -> None:
        """Set the mark."""
        (self._folder / name).write_text(self._now, encoding="ascii")
