"""Adapt git's index (gitformat-index(5)) to the snapshot that a run sees. Pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

_FIXED = 40
"""Bytes of an entry before its object name."""
_TIME = 8
"""Offset of the file's modification time in an entry: seconds and nanoseconds, 4 bytes each."""
_ASSUME_VALID = 0x8000
_EXTENDED = 0x4000


def of_snapshot(index: bytes, absent: Callable[[str], bool], *, name: int, time: Callable[[str], int]) -> bytes:
    """Return the index of a working tree, adapted to a snapshot in which a file has the `time` (nanoseconds since 1970).

    Every entry gets its time, so that git does not consider a file changed by its time alone. Since the index is not newer,
    git compares contents (gitformat-index, "racy git"). Entries of `absent` paths are marked as unchanged, so that git does
    not report them as deleted. `name`: length of an object name in bytes. An index of a version other than 2 and 3, or a
    damaged index, is returned unchanged.
    """
    if index[:4] != b"DIRC" or int.from_bytes(index[4:8], "big") not in (2, 3):
        return index
    adapted = bytearray(index)
    entry_at = 12
    for _ in range(int.from_bytes(index[8:12], "big")):
        flags_at = entry_at + _FIXED + name
        flags = int.from_bytes(index[flags_at : flags_at + 2], "big")
        path_at = flags_at + (4 if flags & _EXTENDED else 2)
        end = index.find(b"\0", path_at)
        if end < 0 or end > len(index) - name:
            return index
        path = index[path_at:end].decode("utf-8", "surrogateescape")
        if absent(path):
            adapted[flags_at : flags_at + 2] = (flags | _ASSUME_VALID).to_bytes(2, "big")
        seconds, nanoseconds = divmod(time(path), 10**9)
        adapted[entry_at + _TIME : entry_at + _TIME + 8] = (seconds & 0xFFFFFFFF).to_bytes(4, "big") + nanoseconds.to_bytes(
            4, "big"
        )
        entry_at += (end - entry_at) // 8 * 8 + 8
    body = bytes(adapted[:-name])
    return body + (hashlib.sha1(body, usedforsecurity=False) if name == 20 else hashlib.sha256(body)).digest()
