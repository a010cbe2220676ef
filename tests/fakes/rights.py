"""A user who has to obey the modes of files, also if the tests run as root."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_VERSION = 0x20080522
_OVERRIDE = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextlib.contextmanager
def file_modes_obeyed() -> Iterator[None]:
    """Drop the capabilities of this thread with which root ignores the modes of files, and take them back at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    effective, *others = before
    assert libc.capset(header, (ctypes.c_uint32 * 6)(effective & ~_OVERRIDE, *others)) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
