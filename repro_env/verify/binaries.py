"""Files of any other kind whose bytes differ: the places that do, with the text around them, where there is any."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator

from repro_env.verify.compared import Change, Ignored
from repro_env.verify.hdf5 import MAGIC, timeless

_PLACES = 500
"""Places that are looked at; a file that differs in more is another one."""
_TEXT = re.compile(rb"[\x20-\x7e]+")
_AROUND = 100
"""Bytes of text beside a difference that are looked at."""
_PIECE = 1 << 16


def changes(left: bytes, right: bytes) -> list[Change]:
    """Of two files of one size each place that differs, as text with what stands around it; else that their sizes do."""
    if len(left) != len(right):
        return [Change(place="(size)", then=f"{len(left):,} bytes", now=f"{len(right):,} bytes")]
    found: list[Change] = []
    for start, end in _spans(left, right):
        if len(found) == _PLACES:
            return [Change(place="(bytes)", then=f"{len(left):,} bytes", now="the same number, which differ at many places")]
        texts = [text for data in (left, right) if (text := _text(data, start, end))]
        if len(texts) == 2:
            first, last = min(at for at, _ in texts), max(to for _, to in texts)
            then, now = (data[first:last].decode("latin-1") for data in (left, right))
        else:
            then, now = (f"0x{data[start : min(end, start + 32)].hex()}" for data in (left, right))
        found.append(Change(place=f"(byte {start})", then=then, now=now))
    return found


def _spans(left: bytes, right: bytes) -> Iterator[tuple[int, int]]:
    """Runs of bytes that differ; two that are fewer than eight bytes apart are one."""
    start = end = -1
    for piece in range(0, len(left), _PIECE):
        one, other = left[piece : piece + _PIECE], right[piece : piece + _PIECE]
        if one == other:
            continue
        for offset, (a, b) in enumerate(zip(one, other, strict=True)):
            if a == b:
                continue
            at = piece + offset
            if start >= 0 and at - end >= 8:
                yield start, end
                start = -1
            if start < 0:
                start = at
            end = at + 1
    if start >= 0:
        yield start, end


def _text(data: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Where the text begins and ends in which the bytes from `start` to `end` lie; None where they are not all text."""
    for found in _TEXT.finditer(data, max(0, start - _AROUND), min(len(data), end + _AROUND)):
        if found.start() <= start and found.end() >= end:
            return found.span()
    return None


def header_times(left: bytes, right: bytes) -> tuple[bytes, bytes, tuple[Ignored, ...]]:
    """Both without the times that their format (gzip: RFC 1952; HDF5) puts into headers, and these, as far as they differ."""
    if left[:2] == right[:2] == b"\x1f\x8b" and min(len(left), len(right)) >= 18:
        then, now = (struct.unpack_from("<I", data, 4)[0] for data in (left, right))
        told = (_told("(time in the gzip header)", then, now),) if then != now else ()
        return left[:4] + bytes(4) + left[8:], right[:4] + bytes(4) + right[8:], told
    if left[:8] == right[:8] == MAGIC:
        (bare, times), (there, others) = timeless(left), timeless(right)
        differing = [pair for pair in zip(times, others, strict=False) if pair[0] != pair[1]]
        return bare, there, tuple(_told("(time in an HDF5 object header)", *pair) for pair in differing)
    return left, right, ()


def _told(place: str, then: int, now: int) -> Ignored:
    reason = "a header field which the format defines as a time"
    return Ignored(place=place, then=str(then), now=str(now), reason=reason, by="evidence")


def unpacked(data: bytes, most: int) -> bytes | None:
    """What gzip packed; None where it cannot be unpacked, or has more than `most` bytes or anything after it."""
    unpacker = zlib.decompressobj(31)
    try:
        made = unpacker.decompress(data, most)
    except zlib.error:
        return None
    return made if unpacker.eof and not unpacker.unused_data else None
