"""Encoder 1: a layer as gzip, without compressing anything. Frozen: its bytes decide blob and manifest digests.

A wheel's member is a raw deflate stream, and the zip file says its CRC and size: what a gzip member needs
(RFC 1952, 2.2: a gzip file is a series of members). So a file's content passes as it lies in its wheel, and all
other bytes of the tar are coded here, by rules that no library's version can change:

- Every member has the same ten bytes of header: no name, no time, no flags, system unknown.
- A content that is deflated already is a member of its own: its stream as it is, its CRC, its size mod 2^32.
- All bytes of the tar between two of those are one member. Headers, padding and the archive's end are blocks of
  fixed Huffman codes (RFC 1951, 3.2.6): each byte a literal, save that in four and more zero bytes, or digits 0, the
  first is a literal and the rest are matches of distance 1, each as long as can be (258 at most) without leaving
  one or two. Such a run is looked for in one header, one padding, one archive's end alone.
- A content that is not deflated is stored blocks of 65535 bytes, the last one shorter. It ends the block before it.
- Each such member ends with a last, empty block of fixed codes.
- A content of no bytes has no member and no block.

The inflated bytes are those of `tar.write`. With `prove` they are made and checked while they pass.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from repro_env.image import tar
from repro_env.image.entry import CHUNK, Entry
from repro_env.model.errors import ArtifactError

ENCODER = 1
"""Version of the rules above."""
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_STORED = 65535
_JOIN = 1 << 18
"""Bytes that are collected before they are given on: the sinks hash and write, which small pieces make slow."""
_RUNS = re.compile(rb"\0\0\0\0+|0000+")


class Deflated(msgspec.Struct, frozen=True):
    """The content of a file as a raw deflate stream."""

    crc: int
    """CRC-32 of the inflated bytes, as the archive says."""
    size: int
    """Inflated bytes, as the archive says."""
    chunks: Iterable[bytes]


Stitches = Iterable[tuple[Entry, Deflated | Iterable[bytes]]]


def stitched(members: Stitches, prove: Callable[[bytes], None] | None = None, *, library: Any = zlib) -> Iterator[bytes]:
    """The gzip of the members' tar, in pieces of at most some hundred KiB.

    Each content is consumed before the next member is asked for. With `prove`, it is called with the bytes of the
    tar, in order; `library` inflates (`zlib` or what behaves like it). Without it no deflate stream is looked at:
    the caller has to know the digest of what comes out. Raises `ArtifactError` for a content of another size than its
    entry, and when proving for a stream that is damaged, has bytes after its end, or another CRC or size than said.
    """
    held: list[bytes] = []
    size = 0
    for piece in _pieces(members, prove or _nothing, library if prove else None):
        held.append(piece)
        size += len(piece)
        if size >= _JOIN:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _nothing(_: bytes) -> None:
    """What proves when nothing is to be proven."""


def _pieces(members: Stitches, prove: Callable[[bytes], None], library: Any) -> Iterator[bytes]:
    run = _Run()
    for entry, content in members:
        head = tar.header(entry)
        prove(head)
        yield run.coded(head)
        if entry.kind != "file":
            continue
        if isinstance(content, Deflated):
            if content.size != entry.size:
                raise _other_size(entry, content.size)
            if not content.size:
                continue
            yield run.end()
            yield _HEADER
            yield from content.chunks if library is None else _proven(entry, content, prove, library)
            yield _trailer(content.crc, content.size)
            run = _Run()
        else:
            seen = 0
            for block in _blocks(content):
                seen += len(block)
                prove(block)
                yield run.stored(block)
            if seen != entry.size:
                raise _other_size(entry, seen)
        if rest := -entry.size % tar.BLOCK:
            prove(bytes(rest))
            yield run.coded(bytes(rest))
    prove(bytes(2 * tar.BLOCK))
    yield run.coded(bytes(2 * tar.BLOCK))
    yield run.end()


def _proven(entry: Entry, content: Deflated, prove: Callable[[bytes], None], library: Any) -> Iterator[bytes]:
    """The chunks of the stream as they are, each inflated and checked after it was given on."""
    inflater = library.decompressobj(-zlib.MAX_WBITS)
    seen = check = 0

    def inflated(data: bytes) -> bytes:
        nonlocal seen, check
        try:
            plain: bytes = inflater.decompress(data, CHUNK)
        except library.error as error:
            raise _damaged(entry, f"cannot be inflated: {error}") from None
        seen += len(plain)
        if seen > content.size:
            raise _damaged(entry, f"inflates to more than the {content.size} bytes that its archive says")
        check = library.crc32(plain, check)
        prove(plain)
        return plain

    for chunk in content.chunks:
        yield chunk
        data = chunk
        while data and not inflater.eof:
            inflated(data)
            data = inflater.unconsumed_tail
        if data or inflater.unused_data:
            raise _damaged(entry, "has bytes after the end of its deflate stream")
    while not inflater.eof and inflated(b""):
        pass  # what the inflater still held back
    if not inflater.eof or seen != content.size or check != content.crc:
        raise _damaged(entry, "has another size or CRC than its archive says")


class _Run:
    """One gzip member of our own making, given out byte by byte as it is known."""

    def __init__(self) -> None:
        self._bits = int.from_bytes(_HEADER, "little")
        self._count = 8 * len(_HEADER)
        self._open = False
        self._crc = 0
        self._size = 0

    def coded(self, piece: bytes) -> bytes:
        """In fixed Huffman codes."""
        self._seen(piece)
        bits, count = self._bits, self._count
        if not self._open:
            bits |= 0b010 << count
            count += 3
            self._open = True
        at = 0
        for found in _RUNS.finditer(piece):
            start, end = found.span()
            if at != start:
                more, length = _literals(piece[at:start])
                bits |= more << count
                count += length
            more, length = _repeated(piece[start], end - start)
            bits |= more << count
            count += length
            at = end
        if at != len(piece):
            more, length = _literals(piece[at:])
            bits |= more << count
            count += length
        whole = count >> 3
        self._bits, self._count = bits >> 8 * whole, count & 7
        return (bits & ((1 << 8 * whole) - 1)).to_bytes(whole, "little")

    def stored(self, block: bytes) -> bytes:
        """As one stored block."""
        self._seen(block)
        self._close()
        self._count += 3
        return self._aligned() + len(block).to_bytes(2, "little") + (len(block) ^ 0xFFFF).to_bytes(2, "little") + block

    def end(self) -> bytes:
        """What ends the member."""
        self._close()
        self._bits |= 0b011 << self._count
        self._count += 3 + 7
        return self._aligned() + _trailer(self._crc, self._size)

    def _seen(self, data: bytes) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)

    def _close(self) -> None:
        if self._open:
            self._count += 7  # the end of a block is seven zero bits
            self._open = False

    def _aligned(self) -> bytes:
        data = self._bits.to_bytes((self._count + 7) // 8, "little")
        self._bits = self._count = 0
        return data


def _trailer(crc: int, size: int) -> bytes:
    return crc.to_bytes(4, "little") + (size % (1 << 32)).to_bytes(4, "little")


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in stored blocks' sizes, however they came."""
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        whole = len(data) - len(data) % _STORED
        for at in range(0, whole, _STORED):
            yield data[at : at + _STORED]
        rest = data[whole:]
    if rest:
        yield rest


def _code(value: int, length: int) -> tuple[int, int]:
    """A Huffman code as it lies in the stream, its first bit lowest; and its length in bits."""
    return int(f"{value:0{length}b}"[::-1], 2), length


_LITERALS = [_code(0x30 + byte, 8) if byte < 144 else _code(0x190 + byte - 144, 9) for byte in range(256)]
_ASCII = bytes(code & 0xFF for code, _ in _LITERALS)
_LENGTHS = [(3 + symbol, 0) for symbol in range(8)]
"""For each length symbol from 257: the smallest length, and how many bits say what is to be added (RFC 1951, 3.2.5)."""
for _extra in range(1, 6):
    _LENGTHS += [(3 + ((4 + step) << _extra), _extra) for step in range(4)]
_LENGTHS.append((258, 0))


def _literals(data: bytes) -> tuple[int, int]:
    """Bytes as literals, as a number whose lowest bit comes first; and its length in bits."""
    if data.isascii():  # codes of eight bits: a byte each
        return int.from_bytes(data.translate(_ASCII), "little"), 8 * len(data)
    bits = count = 0
    for byte in data:
        code, length = _LITERALS[byte]
        bits |= code << count
        count += length
    return bits, count


@lru_cache(maxsize=2048)
def _repeated(byte: int, times: int) -> tuple[int, int]:
    """One byte, four times or more: a literal, and matches of what is one byte back."""
    bits, count = _LITERALS[byte]
    left = times - 1
    while left:
        take = min(left, 258)
        if 0 < left - take < 3:
            take = left - 3
        left -= take
        symbol = max(index for index, (least, _) in enumerate(_LENGTHS) if least <= take)
        least, extra = _LENGTHS[symbol]
        code, length = _code(symbol + 1, 7) if symbol < 23 else _code(0xC0 + symbol - 23, 8)
        bits |= (code | (take - least) << length) << count
        count += length + extra + 5  # the distance 1 is five zero bits
    return bits, count


def _other_size(entry: Entry, seen: int) -> ArtifactError:
    return ArtifactError(
        f"has {seen} bytes where {entry.size} were expected",
        where=entry.path,
        hint="the archive it comes from contradicts itself or was changed; delete it from the store and rebuild",
    )


def _damaged(entry: Entry, what: str) -> ArtifactError:
    return ArtifactError(
        what, where=entry.path, hint="the archive it comes from is damaged; delete it from the store and rebuild"
    )
