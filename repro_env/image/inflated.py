"""A layer blob as others send it, gzip, zstd or plain, as the bytes of its tar."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator

from repro_env.image.entry import CHUNK
from repro_env.model.errors import ArtifactError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"
"""Bytes 2 to 4 of a zstd frame that holds no data; the first is 0x50 to 0x5f (RFC 8878, 3.1.2)."""
_WINDOW = 1 << 27
"""Bytes that a zstd frame may ask for: what the format's own tools allow (`--long=27`)."""

_FED = 2048


def inflated(chunks: Iterable[bytes], *, where: str) -> Iterator[bytes]:
    """The tar's bytes, at most `CHUNK` at a time. Told by its first bytes, not by what a manifest calls it.

    Any number of gzip members or zstd frames. Raises `ArtifactError` for damaged bytes, and for what follows them.
    """
    source = (chunk for chunk in chunks if chunk)
    head = b""
    while len(head) < 4 and (more := next(source, b"")):
        head += more
    if head[:2] == _GZIP:
        yield from _gzip(head, source, where)
    elif head[:4] == _ZSTD or (head[1:4] == _SKIPPED and head[0] >> 4 == 5):
        yield from _zstd(head, source, where)
    else:
        yield from _cut(head)
        for chunk in source:
            yield from _cut(chunk)


def _cut(data: bytes, size: int = CHUNK) -> Iterator[bytes]:
    yield from (data[at : at + size] for at in range(0, len(data), size))


def _gzip(data: bytes, source: Iterator[bytes], where: str) -> Iterator[bytes]:
    while data:
        member = zlib.decompressobj(31)
        while not member.eof:
            try:
                out = member.decompress(data, CHUNK)
            except zlib.error as error:
                raise _bad(f"is damaged: {error}", where) from None
            if out:
                yield out
            if not member.eof:
                data = member.unconsumed_tail or (b"" if len(out) == CHUNK else next(source, b""))
                if not data and len(out) < CHUNK:
                    raise _bad("is cut short", where)
        data = member.unused_data or next(source, b"")


def _zstd(data: bytes, source: Iterator[bytes], where: str) -> Iterator[bytes]:
    from zstandard import ZstdDecompressor, ZstdError

    # Its stream reader takes a cut frame for a whole one. This one has no limit of what comes out at once, but a little
    # of the input cannot become much: 4 bytes are a block of 128 KiB at most.
    unpacker = ZstdDecompressor(max_window_size=_WINDOW)
    frame, begun = unpacker.decompressobj(), False
    for chunk in itertools.chain([data], source):
        for part in _cut(chunk, _FED):
            rest = part
            while rest:
                if not begun:
                    frame, begun = unpacker.decompressobj(), True
                try:
                    yield from _cut(frame.decompress(rest))
                except ZstdError as error:
                    raise _bad(f"is damaged: {error}", where) from None
                begun, rest = not frame.eof, frame.unused_data if frame.eof else b""
    if begun:
        raise _bad("is cut short", where)


def _bad(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint="fetch it again, or have it built again")
