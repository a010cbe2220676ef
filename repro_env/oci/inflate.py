"""Decompress gzip and deflate streams with isal, which is twice as fast as zlib, or with zlib where isal has no wheel.

The output is always checked by CRC, size or sha256, so the choice of the library cannot change a digest.
"""

from __future__ import annotations

import contextlib
import importlib
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from repro_env.oci.entry import CHUNK
from repro_env.schema.errors import ArtifactError

ZLIB: Any = zlib
with contextlib.suppress(ImportError):
    ZLIB = importlib.import_module("isal.isal_zlib")
"""`zlib` or a compatible module: decompressobj, crc32, error."""


class Deflated(msgspec.Struct, frozen=True):
    """The content of a file as a raw deflate stream. Iterating decompresses and checks it, and raises `ArtifactError`."""

    crc: int
    """CRC-32 of the decompressed bytes, from the archive."""
    size: int
    """Size of the decompressed bytes, from the archive."""
    chunks: Iterable[bytes]
    """The stream, which is read once."""
    where: str
    """For messages."""
    is_small: bool = False
    """Whether the stream and the content are small enough for the memory."""

    def __iter__(self) -> Iterator[bytes]:
        chunks = iter(self.chunks)
        if self.is_small:  # one step takes a fraction of the time; the checks below find out what is wrong
            data = b"".join(chunks)
            inflater = ZLIB.decompressobj(-zlib.MAX_WBITS)
            with contextlib.suppress(ZLIB.error):
                plain = inflater.decompress(data, self.size + 1)
                if len(plain) == self.size and inflater.eof and not inflater.unused_data and ZLIB.crc32(plain) == self.crc:
                    return iter((plain,))
            chunks = iter((data,))
        return check(self._plain(chunks), self.size, self.crc, self.where)

    def _plain(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        after = yield from _decompress(chunks, -zlib.MAX_WBITS, lambda what: _damaged(what, self.where))
        if after or next(chunks, b""):
            raise _damaged("has bytes after the end of its deflate stream", self.where)


def check(chunks: Iterable[bytes], size: int, crc: int, where: str) -> Iterator[bytes]:
    """Yield the content of a file. Raises `ArtifactError` unless it has the size and CRC from its archive."""
    actual_size = actual_crc = 0
    for chunk in chunks:
        actual_size += len(chunk)
        if actual_size > size:
            raise _damaged(f"is larger than the {size} bytes that its archive declares", where)
        actual_crc = ZLIB.crc32(chunk, actual_crc)
        yield chunk
    if actual_size != size or actual_crc != crc:
        raise _damaged("does not have the size and CRC that its archive declares", where)


def gunzip(chunks: Iterator[bytes], damaged: Callable[[str], Exception]) -> Iterator[bytes]:
    """Decompress one gzip member after another. Nothing may follow them. `damaged` returns the error for damaged bytes."""
    data = next(chunks, b"")
    while data:
        after = yield from _decompress(chain((data,), chunks), zlib.MAX_WBITS | 16, damaged)
        data = after or next(chunks, b"")


def _decompress(chunks: Iterable[bytes], wbits: int, damaged: Callable[[str], Exception]) -> Generator[bytes, None, bytes]:
    """Decompress one stream, at most `CHUNK` of output at a time. Returns the bytes after its end in the last chunk read."""
    inflater = ZLIB.decompressobj(wbits)
    try:
        for chunk in chunks:
            data = chunk
            while data and not inflater.eof:
                if plain := inflater.decompress(data, CHUNK):
                    yield plain
                data = inflater.unconsumed_tail
            if inflater.eof:
                after: bytes = inflater.unused_data
                return after
        while not inflater.eof and (plain := inflater.decompress(b"", CHUNK)):
            yield plain  # what the decompressor still holds
    except ZLIB.error as error:
        raise damaged(f"is damaged: {error}") from None
    if not inflater.eof:
        raise damaged("is truncated")
    return b""


def _damaged(what: str, where: str) -> ArtifactError:
    hint = "its archive is damaged; delete the archive from the store and rebuild"
    return ArtifactError(f"the file {what}", where=where, hint=hint)
