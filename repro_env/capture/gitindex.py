"""git's index (gitformat-index(5)), as far as a run has to change it. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

_FIXED = 40
"""Bytes of an entry before the name of its object."""
_TIME = 8
"""Where it holds the time of the file's last change: seconds and nanoseconds."""
_ASSUME_VALID = 0x8000
_EXTENDED = 0x4000


def of_snapshot(index: bytes, absent: Callable[[str], bool], *, name: int, time: int) -> bytes:
    """The index of a working tree, for a snapshot of it in which every file has the same time (seconds since 1970).

    Entries get that time, so that git does not take a file for changed by its time alone; as the index is not newer, it
    compares contents (gitformat-index, "racy git"). Entries of `absent` paths are marked as unchanged: git does not call
    them deleted. `name`: bytes of an object's name. An index of a version other than 2 and 3, or a damaged one, stays as it is.
    """
    if index[:4] != b"DIRC" or int.from_bytes(index[4:8], "big") not in (2, 3):
        return index
    made = bytearray(index)
    at = 12
    for _ in range(int.from_bytes(index[8:12], "big")):
        flags_at = at + _FIXED + name
        flags = int.from_bytes(index[flags_at : flags_at + 2], "big")
        path_at = flags_at + (4 if flags & _EXTENDED else 2)
        end = index.find(b"\0", path_at)
        if end < 0 or end > len(index) - name:
            return index
        if absent(index[path_at:end].decode("utf-8", "surrogateescape")):
            made[flags_at : flags_at + 2] = (flags | _ASSUME_VALID).to_bytes(2, "big")
        made[at + _TIME : at + _TIME + 8] = time.to_bytes(4, "big") + bytes(4)
        at += (end - at) // 8 * 8 + 8
    body = bytes(made[:-name])
    return body + (hashlib.sha1(body, usedforsecurity=False) if name == 20 else hashlib.sha256(body)).digest()
