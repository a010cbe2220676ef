"""Decompress a layer blob of any tool: gzip, zstd or a plain tar."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from repro_env.oci import inflate
from repro_env.oci.entry import CHUNK
from repro_env.schema.errors import ArtifactError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_SKIPPED = b"\x2a\x4d\x18"
"""Bytes 2 to 4 of a skippable zstd frame; its first byte is 0x50 to 0x5f (RFC 8878, 3.1.2)."""
_WINDOW = 1 << 27
"""Largest window of a zstd frame in bytes, as in the `zstd` tool (`--long=27`)."""
_INPUT_SIZE = 2048
"""Bytes that the zstd decompressor gets at once."""


def decompress(chunks: Iterable[bytes], *, where: str) -> Iterator[bytes]:
    """Yield the bytes of the tar, at most `CHUNK` at a time. The first bytes decide the format, not the media type.

    The blob may consist of several gzip members or zstd frames. Raises `ArtifactError` for damaged or trailing bytes.
    """
    source = (chunk for chunk in chunks if chunk)
    head = b""
    while len(head) < 4 and (more := next(source, b"")):
        head += more
    if head[:2] == _GZIP:
        yield from gunzip(lambda: next(source, b""), lambda what: _bad(f"the layer {what}", where), head)
    elif head[:4] == _ZSTD or (head[1:4] == _SKIPPED and head[0] >> 4 == 5):
        yield from _zstd(head, source, where)
    else:
        yield from _cut(head)
        for chunk in source:
            yield from _cut(chunk)


def _cut(data: bytes, size: int = CHUNK) -> Iterator[bytes]:
    yield from (data[at : at + size] for at in range(0, len(data), size))


def gunzip(read: Callable[[], bytes], bad: Callable[[str], Exception], data: bytes = b"") -> Iterator[bytes]:
    """Decompress one gzip member after another, at most `CHUNK` of output at a time. Nothing may follow them.

    `read` returns the next bytes, empty only at the end; `data`: bytes that were read before. `bad` returns the error for
    damaged bytes.
    """
    data = data or read()
    while data:
        member = inflate.ZLIB.decompressobj(31)
        while not member.eof:
            try:
                out = member.decompress(data, CHUNK)
            except inflate.ZLIB.error as error:
                raise bad(f"is damaged: {error}") from None
            if out:
                yield out
            if not member.eof:
                data = member.unconsumed_tail or (b"" if len(out) == CHUNK else read())
                if not data and len(out) < CHUNK:
                    raise bad("is truncated")
        data = member.unused_data or read()


def _zstd(data: bytes, source: Iterator[bytes], where: str) -> Iterator[bytes]:
    from zstandard import ZstdDecompressor, ZstdError

    # The library's stream reader accepts a truncated frame, so this uses its decompression object. That has no limit on
    # its output, but a small input cannot become large: 4 bytes are at most one block of 128 KiB.
    unpacker = ZstdDecompressor(max_window_size=_WINDOW)
    frame, started = unpacker.decompressobj(), False
    for chunk in itertools.chain([data], source):
        for part in _cut(chunk, _INPUT_SIZE):
            pending = part
            while pending:
                if not started:
                    frame, started = unpacker.decompressobj(), True
                try:
                    yield from _cut(frame.decompress(pending))
                except ZstdError as error:
                    raise _bad(f"the layer is damaged: {error}", where) from None
                started, pending = not frame.eof, frame.unused_data if frame.eof else b""
    if started:
        raise _bad("the layer is truncated", where)


def _bad(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint="download the image again, or build it again")
