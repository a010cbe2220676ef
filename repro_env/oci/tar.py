"""Layer rule 2: entries -> tar bytes. A small, frozen encoder, and its strict reader.

The bytes decide every diff ID, so they must not depend on the version of a library. Headers are POSIX ustar. A pax header
(POSIX.1-2001: `path`, `linkpath`, `size`) is written only for what ustar cannot hold: names and link targets that are
not ASCII or longer than 100 bytes (the prefix field is never used), and sizes of 8 GiB and more. The owner is 0:0
without names, the time is `MTIME`, and the kind decides the mode. Every user may write to `SHARED`. The archive ends with
two zero blocks.

The reader accepts exactly what the encoder writes, because a bundled blob is untrusted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Literal

from repro_env.oci.entry import CHUNK, Entry, Member, Members
from repro_env.schema.errors import ArtifactError

RULE = 2
BLOCK = 512
MTIME = 315532800
"""1980-01-01 00:00 UTC: the earliest time that a zip file can hold, so wheels and tars can have the same."""
WHITEOUT = ".wh."
"""OCI image spec, "Whiteouts"."""
MAX_PAX = 1 << 16
_TYPES = {"file": b"0", "link": b"2", "dir": b"5", "gone": b"0"}
_KINDS: dict[bytes, Literal["file", "link", "dir", "gone"]] = {b"0": "file", b"2": "link", b"5": "dir"}
SHARED = ("tmp", "var/tmp")
"""Directories that get mode 1777 in every layer that contains them, because a container may run as any user."""
_MODES = {"link": 0o777, "gone": 0o644}


def write(members: Members) -> Iterator[bytes]:
    """Yield the tar of the members, in the given order. Raises `ArtifactError` if a content does not have its entry's size."""
    for entry, chunks in members:
        yield header(entry)
        if entry.kind == "file":
            size = 0
            for chunk in chunks:
                size += len(chunk)
                yield chunk
            check_size(entry, size)
            if padding := -size % BLOCK:
                yield bytes(padding)
    yield bytes(2 * BLOCK)


def check_size(entry: Entry, size: int) -> None:
    """Raise `ArtifactError` unless a content has the size of its entry."""
    if size != entry.size:
        raise ArtifactError(
            f"the file has {size} bytes instead of the expected {entry.size}",
            where=entry.path,
            hint="it changed while it was read, or its archive is inconsistent; try again",
        )


def header(entry: Entry) -> bytes:
    """Return the header blocks of one entry: 512 bytes, or at least 1536 with a pax header."""
    path = entry.path
    if entry.kind == "gone":
        directory, slash, last = path.rpartition("/")
        path = f"{directory}{slash}{WHITEOUT}{last}"
    name = path.encode() + (b"/" if entry.kind == "dir" else b"")
    link = entry.target.encode()
    size = entry.size if entry.kind == "file" else 0
    pax = b""
    if len(name) > 100 or not name.isascii():
        pax += _record(b"path", name)
        name = b"pax/path"
    if len(link) > 100 or not link.isascii():
        pax += _record(b"linkpath", link)
        link = b"pax/linkpath"
    octal_size = size
    if size >= 8 << 30:
        pax += _record(b"size", b"%d" % size)
        octal_size = 0
    block = _block(name, mode(entry), octal_size, _TYPES[entry.kind], link)
    if not pax:
        return block
    return _block(b"pax/header", 0o644, len(pax), b"x", b"") + pax + bytes(-len(pax) % BLOCK) + block


def mode(entry: Entry) -> int:
    """Return the permission bits of an entry."""
    if entry.kind == "dir":
        return 0o1777 if entry.path in SHARED else 0o755
    return _MODES.get(entry.kind) or (0o755 if entry.executable else 0o644)


def _block(name: bytes, mode: int, size: int, kind: bytes, link: bytes) -> bytes:
    fields = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode, 0, 0, size, MTIME)
    tail, tail_sum = _tail(kind, link)
    checksum = sum(name) + sum(fields) + tail_sum + 8 * 0x20
    return b"%b%b%06o\0 %b" % (name.ljust(100, b"\0"), fields, checksum, tail)


@lru_cache(maxsize=64)
def _tail(kind: bytes, link: bytes) -> tuple[bytes, int]:
    """Return what follows the checksum, and the sum of its bytes: almost always that of a file."""
    tail = b"%b%bustar\00000%b" % (kind, link.ljust(100, b"\0"), bytes(BLOCK - 265))
    return tail, sum(tail)


def _record(key: bytes, value: bytes) -> bytes:
    """Return `<length> key=value\\n` (POSIX pax format). The length includes its own digits."""
    body = b" %b=%b\n" % (key, value)
    length = len(body) + 1
    while length != len(b"%d" % length) + len(body):
        length = len(b"%d" % length) + len(body)
    return b"%d%b" % (length, body)


def read(chunks: Iterable[bytes], *, where: str) -> Iterator[Member]:
    """Yield the members of a tar that `write` made, from its bytes, which are read to their end.

    Read each content before the next member. Raises `ArtifactError` for anything that the encoder does not write: other
    types, `..`, absolute or repeated paths, a path below a symlink, wrong order, checksums or padding, trailing bytes.
    """
    pending, source = memoryview(b""), filter(None, chunks)

    def take(most: int) -> bytes:
        nonlocal pending
        pending = pending or memoryview(next(source, b""))
        taken, pending = pending[:most], pending[most:]
        return bytes(taken)

    last = b""
    links: set[str] = set()
    while True:
        block = _exactly(take, BLOCK, where)
        if block == bytes(BLOCK):
            if _exactly(take, BLOCK, where) != bytes(BLOCK) or take(1):
                raise _bad("the tar does not end with two zero blocks", where)
            return
        raw, pax = block, dict[bytes, bytes]()
        entry = None
        with contextlib.suppress(ValueError, KeyError):  # raised by `_records` and `_entry`
            if block[156:157] == b"x":
                length = int(block[124:135], 8)
                if not 0 < length <= MAX_PAX:
                    raise ValueError
                extended = _exactly(take, length + -length % BLOCK, where)
                block = _exactly(take, BLOCK, where)
                raw, pax = raw + extended + block, _records(extended[:length])
            entry = _entry(block, pax)
        if entry is None or header(entry) != raw:
            raise _bad("the tar has a header that repro-env does not write", where)
        if entry.key <= last:
            raise _bad(f"the tar has {entry.path!r} twice or out of order", where)
        last = entry.key
        parts = entry.path.split("/")
        if any("/".join(parts[:depth]) in links for depth in range(1, len(parts))):
            raise _bad(f"the tar has {entry.path!r} below a symlink", where)
        if entry.kind == "link":
            links.add(entry.path)
        size = entry.size if entry.kind == "file" else 0
        unread = [size]
        yield entry, _content(take, unread, where)
        if unread[0]:
            raise ArtifactError("the content of the file was not read to its end", where=f"{where}: {entry.path}")
        if bytes(-size % BLOCK) != _exactly(take, -size % BLOCK, where):
            raise _bad("the tar has padding that is not zero", where)


def _content(take: Callable[[int], bytes], unread: list[int], where: str) -> Iterator[bytes]:
    while unread[0]:
        chunk = take(min(CHUNK, unread[0]))
        if not chunk:
            raise _bad("the tar is truncated", where)
        unread[0] -= len(chunk)
        yield chunk


def _entry(block: bytes, pax: dict[bytes, bytes]) -> Entry:
    """Return the entry of a header. Raises `ValueError` or `KeyError` if the header has none.

    Only what an entry may hold is checked: `read` writes the header again and compares all bytes.
    """
    path = pax.get(b"path", block[:100].rstrip(b"\0")).decode().removesuffix("/")
    target = pax.get(b"linkpath", block[157:257].rstrip(b"\0")).decode()
    size = int(pax[b"size"]) if b"size" in pax else int(block[124:135], 8)
    kind = _KINDS[block[156:157]]
    directory, slash, name = path.rpartition("/")
    if kind == "file" and name.startswith(WHITEOUT):
        kind, name = "gone", name.removeprefix(WHITEOUT)
        path = f"{directory}{slash}{name}"
    parts = path.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\0" in path + target:
        raise ValueError
    if size < 0 or (kind == "link") != bool(target) or (kind == "gone" and name.startswith(WHITEOUT)):
        raise ValueError
    return Entry(path, kind, kind == "file" and block[100:107] == b"0000755", size, target=target)


def _records(body: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header. Raises `ValueError` if it has none."""
    records = {}
    while body:
        length = int(body.partition(b" ")[0])
        if length < 1:
            raise ValueError
        key, _, value = body[:length].partition(b" ")[2].removesuffix(b"\n").partition(b"=")
        records[key] = value
        body = body[length:]
    return records


def _exactly(take: Callable[[int], bytes], count: int, where: str) -> bytes:
    data = b""
    while len(data) < count:
        chunk = take(count - len(data))
        if not chunk:
            raise _bad("the tar is truncated", where)
        data += chunk
    return data


def _bad(what: str, where: str) -> ArtifactError:
    return ArtifactError(
        what, where=where, hint="the blob is damaged or was not made by repro-env; copy it again, or capture again"
    )
