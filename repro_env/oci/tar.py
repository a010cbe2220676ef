"""Layer rule 2: entries -> tar bytes. A small, frozen encoder, and its strict reader.

The bytes decide every diff ID, so they must not depend on the version of a library. Headers are POSIX ustar. A pax header
(POSIX.1-2001: `path`, `linkpath`, `size`) is written only for what ustar cannot hold: names and link targets that are
not ASCII or longer than 100 bytes (the prefix field is never used), and sizes of 8 GiB and more. The owner is 0:0
without names, the time is `MTIME`, and the kind decides the mode. Every user may write to `SHARED`. The archive ends with
two zero blocks.

The reader accepts exactly what the encoder writes, because a bundled blob is untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
            if size != entry.size:
                raise ArtifactError(
                    f"the file has {size} bytes instead of the expected {entry.size}",
                    where=entry.path,
                    hint="it changed while it was read; try again",
                )
            if padding := -size % BLOCK:
                yield bytes(padding)
    yield bytes(2 * BLOCK)


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
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(100, b"\0"), mode, 0, 0, size, MTIME)
    tail = b"%b%bustar\00000%b" % (kind, link.ljust(100, b"\0"), bytes(BLOCK - 265))
    checksum = sum(head) + sum(tail) + 8 * 0x20
    return b"%b%06o\0 %b" % (head, checksum, tail)


def _record(key: bytes, value: bytes) -> bytes:
    """Return `<length> key=value\\n` (POSIX pax format). The length includes its own digits."""
    body = b" %b=%b\n" % (key, value)
    length = len(body) + 1
    while length != len(b"%d" % length) + len(body):
        length = len(b"%d" % length) + len(body)
    return b"%d%b" % (length, body)


def read(take: Callable[[int], bytes], *, where: str) -> Iterator[Member]:
    """Yield the members of a tar that `write` made. `take(n)` returns up to n bytes, and none only at the end.

    Read each content before the next member. Raises `ArtifactError` for anything that the encoder does not write: other
    types, `..`, absolute or repeated paths, a path below a symlink, wrong order, checksums or padding, trailing bytes.
    """
    last = b""
    links: set[str] = set()
    while True:
        block = _exactly(take, BLOCK, where)
        if block == bytes(BLOCK):
            if _exactly(take, BLOCK, where) != bytes(BLOCK) or take(1):
                raise _bad("the tar does not end with two zero blocks", where)
            return
        pax: dict[bytes, bytes] = {}
        if block[156:157] == b"x":
            length = _octal(block[124:136], where)
            if not 0 < length <= MAX_PAX:
                raise _bad("the tar has an extended header of an impossible size", where)
            pax = _records(_exactly(take, length, where), where)
            padding = _exactly(take, -length % BLOCK, where)
            first = block + _joined(pax) + padding
            block = _exactly(take, BLOCK, where)
        else:
            first = b""
        entry = _entry(block, pax, where)
        if header(entry) != (first + block):
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


def _entry(block: bytes, pax: dict[bytes, bytes], where: str) -> Entry:
    try:
        name = pax.get(b"path", block[:100].rstrip(b"\0")).decode()
        link = pax.get(b"linkpath", block[157:257].rstrip(b"\0")).decode()
    except UnicodeDecodeError:
        raise _bad("the tar has a name that is not UTF-8", where) from None
    if b"size" in pax:
        if not (pax[b"size"].isdigit() and len(pax[b"size"]) < 19):
            raise _bad("the tar has a size that is not a number", where)
        size = int(pax[b"size"])
    else:
        size = _octal(block[124:136], where)
    kind, mode = block[156:157], _octal(block[100:108], where)
    path = name.removesuffix("/")
    parts = path.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\0" in name + link:
        raise _bad(f"the tar has the invalid path {name!r}", where)
    if kind == b"5":
        return Entry(path, "dir")
    if kind == b"2":
        if not link:
            raise _bad(f"the tar has the symlink {path!r} without a target", where)
        return Entry(path, "link", target=link)
    if kind != b"0":
        raise _bad(f"the tar has {path!r}, which is not a file, directory or symlink", where)
    if parts[-1].startswith(WHITEOUT):
        hidden = parts[-1].removeprefix(WHITEOUT)
        if hidden in ("", ".", "..") or hidden.startswith(WHITEOUT):
            raise _bad(f"the tar has the invalid path {name!r}", where)
        return Entry("/".join([*parts[:-1], hidden]), "gone")
    return Entry(path, "file", mode == 0o755, size)


def _records(body: bytes, where: str) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    while body:
        length, space, _ = body.partition(b" ")
        if not space or not length.isdigit() or not len(length) < int(length[:6]) <= len(body):
            raise _bad("the tar has a damaged extended header", where)
        record, body = body[: int(length)], body[int(length) :]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not equals or key in records or key not in (b"path", b"linkpath", b"size"):
            raise _bad("the tar has an extended header that repro-env does not write", where)
        records[key] = value
    return records


def _joined(pax: dict[bytes, bytes]) -> bytes:
    return b"".join(_record(key, value) for key, value in pax.items())


def _octal(field: bytes, where: str) -> int:
    digits = field.rstrip(b"\0 ")
    if not digits or not digits.isdigit() or b"8" in digits or b"9" in digits:
        raise _bad("the tar has a damaged header", where)
    return int(digits, 8)


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
