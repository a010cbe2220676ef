"""Read the bytes of any tar in order, count and hash them, and decode the fields of its headers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from repro_env.oci.entry import CHUNK
from repro_env.oci.tar import BLOCK
from repro_env.schema.errors import ArtifactError

_XATTRS = ("SCHILY.xattr.", "LIBARCHIVE.xattr.")


class Stream:
    """The bytes of a tar, counted and hashed while they are read."""

    def __init__(self, chunks: Iterator[bytes], where: str, limit: int, sink: Callable[[bytes], object] | None) -> None:
        self._chunks = chunks
        self._where = where
        self._limit = limit
        self._sink = sink
        self._hasher = hashlib.sha256()
        self._received = 0
        self._buffer = b""
        self._start = 0

    @property
    def at(self) -> int:
        """Number of bytes read so far."""
        return self._received - len(self._buffer) + self._start

    def take(self, count: int) -> bytes:
        """Return up to `count` bytes; empty only at the end."""
        if self._start == len(self._buffer):
            self._buffer, self._start = next(self._chunks, b""), 0
            self._received += len(self._buffer)
            if self._received > self._limit:
                raise bad(f"the layer is larger than {self._limit:,} bytes", self._where)
            self._hasher.update(self._buffer)
            if self._sink is not None:
                self._sink(self._buffer)
        data = self._buffer[self._start : self._start + count]
        self._start += len(data)
        return data

    def exactly(self, count: int) -> bytes:
        """Return `count` bytes. Raises `ArtifactError` if there are fewer."""
        data = self.take(count)
        while len(data) < count:
            chunk = self.take(count - len(data))
            if not chunk:
                raise bad("the layer is truncated", self._where)
            data += chunk
        return data

    def block(self) -> bytes | None:
        """Return the next header block; None at the end of the file, if the final zero blocks are missing."""
        first = self.take(BLOCK)
        return first + self.exactly(BLOCK - len(first)) if first else None

    def content(self, size: int) -> Iterator[bytes]:
        """Yield the content that follows a header, and skip its padding."""
        unread = size
        while unread:
            chunk = self.take(min(unread, CHUNK))
            if not chunk:
                raise bad("the layer is truncated", self._where)
            unread -= len(chunk)
            yield chunk
        self.exactly(-size % BLOCK)

    def finish(self, problem: Callable[[str], None]) -> str:
        """Read the remaining bytes, which should be zeros. Returns the diff ID."""
        hidden = False
        while data := self.take(CHUNK):
            hidden = hidden or any(data)
        if hidden:
            problem("the layer has bytes after the end of its tar, which tools ignore")
        return f"sha256:{self._hasher.hexdigest()}"


def plain_name(block: bytes) -> bytes:
    """Return the name in the header block, with the prefix of a ustar header."""
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def number(field: bytes, where: str) -> int:
    """Return a numeric field: octal, or base-256 as GNU tar writes large numbers."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
        return value - (1 << (8 * len(field) - 2)) if field[0] & 0x40 else value
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError:
        raise bad("the layer is not a tar, or it is damaged", where) from None


def decimal(value: bytes, where: str) -> int:
    """Return a decimal number of an extended header."""
    if not (value.isdigit() and len(value) < 19):
        raise bad("the layer has an extended header with an invalid number", where)
    return int(value)


def seconds(value: bytes, where: str) -> int:
    """Return the whole seconds of a time."""
    whole = value.partition(b".")[0]
    return -decimal(whole[1:], where) if whole[:1] == b"-" else decimal(whole, where)


def records(body: bytes, where: str) -> dict[str, bytes]:
    """Return the fields of a pax header: lines of `<length> key=value\\n`."""
    fields: dict[str, bytes] = {}
    at = 0
    while at < len(body) and body[at]:
        space = body.find(b" ", at, at + 8)
        digits = body[at:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = body[space + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if space < 0 or at + length > len(body) or record[-1:] != b"\n" or not equals:
            raise bad("the layer has a damaged extended header", where)
        fields[key.decode("utf-8", "replace")] = value
        at += length
    return fields


def xattrs(pax: dict[str, bytes]) -> tuple[tuple[str, str], ...]:
    """Return the extended attributes of a pax header, sorted by name."""
    values = {
        key.removeprefix(start): value.decode("latin-1")
        for key, value in pax.items()
        for start in _XATTRS
        if key.startswith(start)
    }
    return tuple(sorted(values.items()))


def bad(what: str, where: str) -> ArtifactError:
    """Return the error for a layer that cannot be read."""
    return ArtifactError(what, where=where, hint="download the image again, or build it again")
