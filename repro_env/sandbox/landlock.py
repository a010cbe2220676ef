"""Restrict with Landlock where this process and its children can write (landlock(7)).

Landlock needs neither privileges nor namespaces. It does not restrict reading, the network, changes of modes and owners, and
files that are already open.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

from repro_env.sandbox import kernel

_MIN_VERSION = 2
"""Least version of the ABI (Linux 5.19): version 1 refuses every rename from one directory to another."""
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_FILE = _WRITE_FILE | _TRUNCATE
"""The rights that a rule for a file can allow."""
_CHANGES = sum(1 << bit for bit in range(4, 14))
"""Making, removing and renaming files and directories."""
KERNEL = ("/dev", "/proc")
"""Interfaces of the kernel: existing files can be written, and no files can be made."""
MEMORY = "/dev/shm"  # noqa: S108


def is_available() -> bool:
    """Whether this kernel can restrict writes."""
    with suppress(OSError):
        return kernel.landlock_version() >= _MIN_VERSION
    return False


def restrict_writes(paths: Iterable[str]) -> None:
    """Allow this process to write only in these directories and files, in shared memory and to devices.

    Raises `OSError`.
    """
    truncate = _TRUNCATE if kernel.landlock_version() > _MIN_VERSION else 0
    ruleset = kernel.landlock_ruleset(_WRITE_FILE | _CHANGES | truncate)
    try:
        for path in (*paths, MEMORY):
            with suppress(FileNotFoundError):
                _allow(ruleset, path, _WRITE_FILE | _CHANGES | truncate)
        for path in KERNEL:
            _allow(ruleset, path, _WRITE_FILE | truncate)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _FILE
        kernel.landlock_allow(ruleset, struct.pack("=Qi", rights, handle))
    finally:
        os.close(handle)
