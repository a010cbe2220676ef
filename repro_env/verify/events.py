"""TensorBoard event files: their records without the time at which each was written.

Records: length (8 bytes, little-endian), its CRC (4), that many bytes, their CRC (4) (TensorFlow, `record_writer.h`). An
`Event` has its wall time as field 1 (`event.proto`); all other fields are compared as they are.
"""

from __future__ import annotations

import struct

_WIDTH = {1: 8, 5: 4}
"""Wire type of Protocol Buffers -> bytes; 0 and 2 say their length themselves."""
_TIME = 1


def timeless(data: bytes) -> list[bytes] | None:
    """Each record without its wall time; None for what is no whole event file. CRCs are not looked at."""
    found = []
    at = 0
    while at < len(data):
        if at + 12 > len(data):
            return None
        (size,) = struct.unpack_from("<Q", data, at)
        start = at + 12
        if start + size + 4 > len(data):
            return None
        left = _without_time(data[start : start + size])
        if left is None:
            return None
        found.append(left)
        at = start + size + 4
    return found


def _without_time(event: bytes) -> bytes | None:
    kept = bytearray()
    at = 0
    while at < len(event):
        start = at
        tag, at = _number(event, at)
        kind = tag & 7
        if kind == 0:
            _, at = _number(event, at)
        elif kind == 2:
            size, at = _number(event, at)
            at += size
        elif kind in _WIDTH:
            at += _WIDTH[kind]
        else:
            return None
        if at > len(event):
            return None
        if tag >> 3 != _TIME:
            kept += event[start:at]
    return bytes(kept)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends; beyond the data for one that is cut off."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            break
    return 0, len(data) + 1
