"""TensorBoard event files: their records without the time at which each was written, and without scalars that are times.

Records: length (8 bytes, little-endian), its CRC (4), that many bytes, their CRC (4) (TensorFlow, `record_writer.h`). An
`Event` has its wall time as field 1, and its summary as field 5 (`event.proto`), with values in field 1 and their tags in
field 1 of these (`summary.proto`); all other fields are compared as they are.
"""

from __future__ import annotations

import struct

from repro_env.verify import masks

_WIDTH = {1: 8, 5: 4}
"""Wire type of Protocol Buffers -> bytes; 0 and 2 say their length themselves."""
_TIME, _SUMMARY, _VALUE, _TAG = 1, 5, 1, 1


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
    fields = _fields(event)
    if fields is None:
        return None
    kept = bytearray()
    for number, whole, body in fields:
        tags = _tags(body) if number == _SUMMARY else None
        if number != _TIME:
            kept += "\n".join(tags).encode() if tags and all(map(masks.volatile, tags)) else whole
    return bytes(kept)


def _tags(summary: bytes) -> list[str] | None:
    """The tags of its values; None where it holds anything else, or a value that has not one tag."""
    found = []
    for number, _, value in _fields(summary) or [(0, b"", b"")]:
        tags = [body for part, _, body in _fields(value) or [] if part == _TAG]
        if number != _VALUE or len(tags) != 1:
            return None
        found.append(tags[0].decode(errors="backslashreplace"))
    return found


def _fields(message: bytes) -> list[tuple[int, bytes, bytes]] | None:
    """(number, the whole field, its body where it has a length); None for what is no message."""
    found = []
    at = 0
    while at < len(message):
        start = at
        tag, at = _number(message, at)
        kind, body = tag & 7, 0
        if kind == 0:
            _, at = _number(message, at)
        elif kind == 2:
            size, at = _number(message, at)
            body = at
            at += size
        elif kind in _WIDTH:
            at += _WIDTH[kind]
        else:
            return None
        if at > len(message):
            return None
        found.append((tag >> 3, message[start:at], message[body:at] if body else b""))
    return found


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
