"""Encoder 1: write a layer as gzip without compressing anything. Frozen: its bytes decide blob and manifest digests.

A member of a wheel is a raw deflate stream, and the zip file gives its CRC and size. That is all a gzip member needs
(RFC 1952, 2.2: a gzip file is a series of members). So the content of a file is copied from its wheel unchanged. All
other bytes of the tar are encoded here, by rules that do not depend on the version of a library:

- Every gzip member has the same ten header bytes: no name, no time, no flags, unknown system.
- Deflated content is a member of its own: the unchanged stream, its CRC, and its size mod 2^32.
- All bytes of the tar between two of those are one member. Headers, padding and the end of the archive are blocks of
  fixed Huffman codes (RFC 1951, 3.2.6). Each byte is a literal, except in runs of four or more zero bytes or digits 0:
  there the first byte is a literal, and the others are matches of distance 1, each as long as possible (at most 258)
  without leaving one or two bytes over. A run does not continue from one header, padding or end to the next.
- Content that is not deflated is written as stored blocks of 65535 bytes, with a shorter last block. It ends the block
  before it.
- Each such member ends with a last, empty block of fixed codes.
- Empty content has no member and no block.

The decompressed bytes are those of `tar.write`. They are computed and checked while they pass.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import msgspec

from repro_env.oci import tar
from repro_env.oci.entry import Members
from repro_env.oci.inflate import Deflated
from repro_env.oci.layer import blocks

ENCODER = 1
"""Version of the rules above."""
_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_STORED = 65535
_JOIN = 1 << 18
"""Bytes that are joined before they are yielded: consumers hash and write them, which is slow for small pieces."""
_RUNS = re.compile(rb"\0\0\0\0+|0000+")


def _nothing(_: bytes) -> None:
    """Stand in for `prove` when nothing is to be proven."""


def stitch_layer(members: Members, prove: Callable[[bytes], None] = _nothing) -> Iterator[bytes]:
    """Yield the gzip of the members' tar, in pieces of at most a few hundred KiB. A content that is `Deflated` is copied.

    Each content is read before the next member. `prove` is called with the bytes of the tar, in order. Raises
    `ArtifactError` if a content does not have the size of its entry, and what reading the contents raises.
    """
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(members, prove):
        pieces.append(piece)
        size += len(piece)
        if size >= _JOIN:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join(pieces)


def _pieces(members: Members, prove: Callable[[bytes], None]) -> Iterator[bytes]:
    run = _Run()
    for entry, content in members:
        head = tar.header(entry)
        prove(head)
        yield run.coded(head)
        if entry.kind != "file":
            continue
        if isinstance(content, Deflated):
            tar.check_size(entry, content.size)
            if not content.size:
                continue
            yield run.end()
            yield _HEADER
            passed: list[bytes] = []
            for plain in msgspec.structs.replace(content, chunks=_note(content.chunks, passed)):
                prove(plain)
                yield from passed
                passed.clear()
            yield from passed
            yield _trailer(content.crc, content.size)
            run = _Run()
        else:
            size = 0
            for block in blocks(content, _STORED):
                size += len(block)
                prove(block)
                yield run.stored(block)
            tar.check_size(entry, size)
        if padding := -entry.size % tar.BLOCK:
            prove(bytes(padding))
            yield run.coded(bytes(padding))
    prove(bytes(2 * tar.BLOCK))
    yield run.coded(bytes(2 * tar.BLOCK))
    yield run.end()


def _note(chunks: Iterable[bytes], passed: list[bytes]) -> Iterator[bytes]:
    """Yield the same chunks, and append each one to a list."""
    for chunk in chunks:
        passed.append(chunk)
        yield chunk


class _Run:
    """One gzip member that this module encodes. Each call returns the bytes that are complete."""

    def __init__(self) -> None:
        self._bits = int.from_bytes(_HEADER, "little")
        self._count = 8 * len(_HEADER)
        self._open = False
        self._crc = 0
        self._size = 0

    def coded(self, piece: bytes) -> bytes:
        """Return the piece in fixed Huffman codes."""
        self._count_input(piece)
        bits, count = self._bits, self._count
        if not self._open:
            bits |= 0b010 << count
            count += 3
            self._open = True
        at = 0
        for match in _RUNS.finditer(piece):
            start, end = match.span()
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
        """Return the block as one stored block."""
        self._count_input(block)
        self._close()
        self._count += 3
        return self._aligned() + len(block).to_bytes(2, "little") + (len(block) ^ 0xFFFF).to_bytes(2, "little") + block

    def end(self) -> bytes:
        """Return the end of the member."""
        self._close()
        self._bits |= 0b011 << self._count
        self._count += 3 + 7
        return self._aligned() + _trailer(self._crc, self._size)

    def _count_input(self, data: bytes) -> None:
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


def _code(value: int, length: int) -> tuple[int, int]:
    """Return a Huffman code as in the stream, with its first bit lowest, and its length in bits."""
    return int(f"{value:0{length}b}"[::-1], 2), length


_LITERALS = [_code(0x30 + byte, 8) if byte < 144 else _code(0x190 + byte - 144, 9) for byte in range(256)]
_ASCII = bytes(code & 0xFF for code, _ in _LITERALS)
_LENGTHS = [(3 + symbol, 0) for symbol in range(8)]
"""For each length symbol from 257: the smallest length and the number of extra bits (RFC 1951, 3.2.5)."""
for _extra in range(1, 6):
    _LENGTHS += [(3 + ((4 + step) << _extra), _extra) for step in range(4)]
_LENGTHS.append((258, 0))


def _literals(data: bytes) -> tuple[int, int]:
    """Return bytes as literals: a number whose lowest bit comes first, and its length in bits."""
    if data.isascii():  # all codes have eight bits
        return int.from_bytes(data.translate(_ASCII), "little"), 8 * len(data)
    bits = count = 0
    for byte in data:
        code, length = _LITERALS[byte]
        bits |= code << count
        count += length
    return bits, count


@lru_cache(maxsize=2048)
def _repeated(byte: int, times: int) -> tuple[int, int]:
    """Encode one byte that occurs four times or more: a literal, then matches of distance 1."""
    bits, count = _LITERALS[byte]
    remaining = times - 1
    while remaining:
        take = min(remaining, 258)
        if 0 < remaining - take < 3:
            take = remaining - 3
        remaining -= take
        symbol = max(index for index, (least, _) in enumerate(_LENGTHS) if least <= take)
        least, extra = _LENGTHS[symbol]
        code, length = _code(symbol + 1, 7) if symbol < 23 else _code(0xC0 + symbol - 23, 8)
        bits |= (code | (take - least) << length) << count
        count += length + extra + 5  # the distance 1 is five zero bits
    return bits, count
