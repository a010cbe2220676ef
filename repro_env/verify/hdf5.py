"""HDF5 files without the times that their objects were made or changed at.

Two places have one (HDF5 File Format Specification, IV.A.1 and IV.A.2.s): a message of its own in headers of the first version, and
four fields in those of the second, whose checksum is over them too. Only these bytes are taken out, where they are such times.
"""

from __future__ import annotations

import re
import struct

MAGIC = b"\x89HDF\r\n\x1a\n"
_TIME = rb"[\s\S]{3}[\x3c-\xff]"
"""Seconds, little-endian, from 2001 on."""
_MESSAGE = re.compile(rb"\x12\0\x08\0[\0-\x3f]\0\0\0\x01\0\0\0(" + _TIME + rb")")
"""Kind 18, 8 bytes, flags, three zeros; version 1, three zeros, the time."""
_HEADER = re.compile(rb"OHDR\x02([\x20-\x3f])((?:" + _TIME + rb"){4})")
"""Version 2; flags, of which the sixth says that there are times."""
_ALL = 0xFFFFFFFF


def timeless(data: bytes) -> tuple[bytes, list[int]]:
    """The bytes with zeros for such times, and the times, in seconds since 1970."""
    made = bytearray(data)
    times: list[int] = []
    for found in _MESSAGE.finditer(data):
        times += struct.unpack("<I", found.group(1))
        made[found.start(1) : found.end(1)] = bytes(4)
    for found in _HEADER.finditer(data):
        flags = found.group(1)[0]
        at = found.end() + (4 if flags & 16 else 0)
        width = 1 << (flags & 3)
        end = at + width + int.from_bytes(data[at : at + width], "little")
        if end + 4 > len(data) or struct.unpack_from("<I", data, end)[0] != _lookup3(data[found.start() : end]):
            continue
        times += struct.unpack("<4I", found.group(2))
        made[found.start(2) : found.end(2)] = bytes(16)
        made[end : end + 4] = bytes(4)
    return bytes(made), times


def _lookup3(data: bytes) -> int:
    """Bob Jenkins' hash of 32 bits, which the format takes for a checksum (`hashlittle` of lookup3.c, begun with 0)."""
    a: int
    b: int
    c: int
    a = b = c = (0xDEADBEEF + len(data)) & _ALL
    at = 0
    while len(data) - at > 12:
        x, y, z = struct.unpack_from("<III", data, at)
        a, b, c = (a + x) & _ALL, (b + y) & _ALL, (c + z) & _ALL
        for first, turn in ((0, 4), (1, 6), (2, 8), (0, 16), (1, 19), (2, 4)):
            three = [a, b, c]
            one, other, third = first, (first + 2) % 3, (first + 1) % 3
            three[one] = (three[one] - three[other]) & _ALL
            three[one] ^= _turned(three[other], turn)
            three[other] = (three[other] + three[third]) & _ALL
            a, b, c = three
        at += 12
    rest = data[at:]
    if not rest:
        return c
    x, y, z = struct.unpack("<III", rest.ljust(12, b"\0"))
    a, b, c = (a + x) & _ALL, (b + y) & _ALL, (c + z) & _ALL
    for turn in (14, 11, 25, 16, 4, 14, 24):
        # c ^= b, c -= b turned; then a of c, b of a, and on.
        c = ((c ^ b) - _turned(b, turn)) & _ALL
        a, b, c = b, c, a
    return b


def _turned(one: int, by: int) -> int:
    return (one << by | one >> (32 - by)) & _ALL
