"""Landlock: the kernel refuses this process, and all that it starts, to write outside of some directories (landlock(7)).

It needs no right and no namespace, so it works where both are refused. What it does not hold: reading, the network, changes
of modes and owners, and files that are already open.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

from repro_env.run import kernel

_LEAST = 2
"""Version of the interface (Linux 5.19): the first one refuses every rename from one directory to another."""
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_FILE = _WRITE_FILE | _TRUNCATE
"""What can be allowed below a file."""
_CHANGES = sum(1 << bit for bit in range(4, 14))
"""Removing and making files and directories of every kind, and moving them to another directory."""
KERNEL = ("/dev", "/proc")
"""Interfaces of the kernel: what is there can be written to, and nothing can be made."""
MEMORY = "/dev/shm"  # noqa: S108


def is_available() -> bool:
    """Whether this kernel can hold what a process writes."""
    with suppress(OSError):
        return kernel.landlock_version() >= _LEAST
    return False


def hold_writes(places: Iterable[str]) -> None:
    """Allow this process to write in these directories and files, in shared memory and to devices; nowhere else.

    Raises `OSError`.
    """
    truncate = _TRUNCATE if kernel.landlock_version() > _LEAST else 0
    ruleset = kernel.landlock_ruleset(_WRITE_FILE | _CHANGES | truncate)
    try:
        for place in (*places, MEMORY):
            with suppress(FileNotFoundError):
                _allow(ruleset, place, _WRITE_FILE | _CHANGES | truncate)
        for place in KERNEL:
            _allow(ruleset, place, _WRITE_FILE | truncate)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, place: str, rights: int) -> None:
    handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _FILE
        kernel.landlock_allow(ruleset, struct.pack("=Qi", rights, handle))
    finally:
        os.close(handle)
