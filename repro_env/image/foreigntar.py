"""The bytes of a tar that any tool wrote: taken in order, counted and hashed; and the fields of its headers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from repro_env.image.entry import CHUNK
from repro_env.image.tar import BLOCK
from repro_env.model.errors import ArtifactError

_XATTRS = ("SCHILY.xattr.", "LIBARCHIVE.xattr.")


class Stream:
    """The bytes of the tar, counted and hashed as they pass."""

    def __init__(self, chunks: Iterator[bytes], where: str, most: int, sink: Callable[[bytes], object] | None) -> None:
        self._chunks = chunks
        self._where = where
        self._most = most
        self._sink = sink
        self._hasher = hashlib.sha256()
        self._seen = 0
        self._buffer = b""
        self._start = 0

    @property
    def at(self) -> int:
        """Bytes taken."""
        return self._seen - len(self._buffer) + self._start

    def take(self, count: int) -> bytes:
        """Up to `count` bytes; none only at the end."""
        if self._start == len(self._buffer):
            self._buffer, self._start = next(self._chunks, b""), 0
            self._seen += len(self._buffer)
            if self._seen > self._most:
                raise bad(f"holds more than {self._most:,} bytes", self._where)
            self._hasher.update(self._buffer)
            if self._sink is not None:
                self._sink(self._buffer)
        data = self._buffer[self._start : self._start + count]
        self._start += len(data)
        return data

    def exactly(self, count: int) -> bytes:
        data = self.take(count)
        while len(data) < count:
            more = self.take(count - len(data))
            if not more:
                raise bad("is cut short", self._where)
            data += more
        return data

    def block(self) -> bytes | None:
        """The next header block; None at the very end, where two zero blocks should have been."""
        first = self.take(BLOCK)
        return first + self.exactly(BLOCK - len(first)) if first else None

    def content(self, size: int) -> Iterator[bytes]:
        """What follows a header, and its padding."""
        left = size
        while left:
            chunk = self.take(min(left, CHUNK))
            if not chunk:
                raise bad("is cut short", self._where)
            left -= len(chunk)
            yield chunk
        self.exactly(-size % BLOCK)

    def finish(self, problem: Callable[[str], None]) -> str:
        """Read what is left, which should be zeros; the diff ID."""
        hidden = False
        while data := self.take(CHUNK):
            hidden = hidden or any(data)
        if hidden:
            problem("has bytes after the end of its tar, which no tool shows")
        return f"sha256:{self._hasher.hexdigest()}"


def plain_name(block: bytes) -> bytes:
    """The name in the block itself, with the prefix where ustar has one."""
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def number(field: bytes, where: str) -> int:
    """Octal, or GNU's base-256 for what octal cannot say."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
        return value - (1 << (8 * len(field) - 2)) if field[0] & 0x40 else value
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError:
        raise bad("is no tar, or a damaged one", where) from None


def decimal(value: bytes, where: str) -> int:
    if not (value.isdigit() and len(value) < 19):
        raise bad("has an extended header with a number that is none", where)
    return int(value)


def seconds(value: bytes, where: str) -> int:
    """Of a time with a fraction."""
    whole = value.partition(b".")[0]
    return -decimal(whole[1:], where) if whole[:1] == b"-" else decimal(whole, where)


def records(body: bytes, where: str) -> dict[str, bytes]:
    """`<length> key=value\\n` (POSIX pax format)."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(body) and body[at]:
        space = body.find(b" ", at, at + 8)
        digits = body[at:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = body[space + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if space < 0 or at + length > len(body) or record[-1:] != b"\n" or not equals:
            raise bad("has a damaged extended header", where)
        found[key.decode("utf-8", "replace")] = value
        at += length
    return found


def xattrs(pax: dict[str, bytes]) -> tuple[tuple[str, str], ...]:
    found = {
        key.removeprefix(start): value.decode("latin-1")
        for key, value in pax.items()
        for start in _XATTRS
        if key.startswith(start)
    }
    return tuple(sorted(found.items()))


def bad(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint="fetch it again, or have it built again")
