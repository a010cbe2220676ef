"""A layer that any tool wrote: its tar -> what it says of each path, in our terms. Nothing is ever written by it.

Reads old, ustar, pax and GNU headers as Docker and containerd do (OCI image spec, "Image Layer Filesystem Changeset").
A stranger may have made it: what cannot be taken as it stands (a path that leaves the root, a hard link to nothing,
a name twice, a sparse file) is left out and named, and what is no tar at all is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from repro_env.image.entry import CHUNK, Entry
from repro_env.image.inflated import inflated
from repro_env.image.tar import BLOCK, WHITEOUT
from repro_env.model.errors import ArtifactError

MAX_UNPACKED = 256 << 30
"""Bytes of one layer's tar."""
MAX_NODES = 2_000_000
"""Paths of one layer."""
MAX_HEADER = 1 << 20
"""Bytes of one extended header, pax or GNU."""
MAX_PATH = 4096
"""Bytes of a path: what Linux takes."""
MAX_PROBLEMS = 1000
MAX_KEPT = 256 << 20
"""Bytes of all contents together that are kept."""
OPAQUE = ".wh..wh..opq"
"""Hides all that lower layers have in the folder."""
_XATTRS = ("SCHILY.xattr.", "LIBARCHIVE.xattr.")

_DECISIVE = {"path", "linkpath", "size"}

Kind = Literal["file", "dir", "link", "hard", "gone", "opaque", "device", "pipe"]
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hard",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "dir",
    b"6": "pipe",
}


class Node(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One member of a layer's tar."""

    path: str
    """Relative to the image's root, normal; of a whiteout the path that it hides, of `opaque` the folder."""
    kind: Kind
    mode: int = 0o755
    """Permission bits, set-uid, set-gid and sticky included."""
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """Seconds since 1970."""
    size: int = 0
    """Bytes of a file."""
    sha256: str = ""
    """Hex, of a file's content."""
    target: str = ""
    """Of a symlink, as it is written; of a hard link, the other path."""
    xattrs: tuple[tuple[str, str], ...] = ()
    """Name and value, sorted; values are the tar's bytes as Latin-1."""
    offset: int = 0
    """Where a file's content begins in the uncompressed tar."""

    @property
    def executable(self) -> bool:
        return bool(self.mode & 0o100)


class Scanned(msgspec.Struct, frozen=True):
    """All that one layer is."""

    diff_id: str
    """Recomputed."""
    size: int
    """Bytes of the tar."""
    nodes: tuple[Node, ...]
    """In the order of the tar."""
    problems: tuple[str, ...]
    """What was left out, and why; what different tools may take differently."""
    kept: dict[str, bytes]
    """Contents that were asked for, by path; the last one where there are several."""


def scan(
    chunks: Iterable[bytes],
    *,
    where: str,
    keep: Callable[[str], bool] | None = None,
    most: int = MAX_UNPACKED,
    sink: Callable[[bytes], object] | None = None,
) -> Scanned:
    """Read a whole layer, compressed or not, once. `keep`: whose contents are wanted; `sink` is given the bytes of the tar.

    Raises `ArtifactError` for damaged or cut bytes, for what is no tar, and for more than `most` bytes.
    """
    stream = _Stream(inflated(chunks, where=where), where, most, sink)
    reader = _Reader(stream, where)
    nodes: list[Node] = []
    kept: dict[str, bytes] = {}
    room = MAX_KEPT
    for node in reader.nodes():
        if len(nodes) >= MAX_NODES:
            raise _bad(f"has more than {MAX_NODES:,} paths", where)
        if node.kind != "file":
            nodes.append(node)
            continue
        hasher = hashlib.sha256()
        wanted = keep is not None and keep(node.path) and node.size <= room
        parts: list[bytes] = []
        for chunk in stream.content(node.size):
            hasher.update(chunk)
            if wanted:
                parts.append(chunk)
        if wanted:
            kept[node.path] = b"".join(parts)
            room -= node.size
        nodes.append(msgspec.structs.replace(node, sha256=hasher.hexdigest()))
    diff_id = stream.finish(reader.problem)
    _twice(nodes, reader.problem)
    return Scanned(diff_id, stream.at, tuple(nodes), tuple(reader.problems), kept)


def entry(node: Node) -> Entry | None:
    """The node in canonical form; None for a device or pipe, which has none. Not for hard links: `flat` resolves them."""
    if node.kind == "file":
        return Entry(node.path, "file", node.executable, node.size, node.sha256)
    if node.kind == "link":
        return Entry(node.path, "link", target=node.target)
    return Entry(node.path, "dir") if node.kind == "dir" else None


def shown(path: str) -> str:
    """A stranger's path for a message."""
    text = path if path.isprintable() else ascii(path)
    return text if len(text) <= 200 else text[:100] + "…" + text[-99:]


class _Stream:
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
                raise _bad(f"holds more than {self._most:,} bytes", self._where)
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
                raise _bad("is cut short", self._where)
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
                raise _bad("is cut short", self._where)
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


class _Reader:
    def __init__(self, stream: _Stream, where: str) -> None:
        self._stream = stream
        self._where = where
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)
        if len(self.problems) > MAX_PROBLEMS:
            raise _bad(f"has more than {MAX_PROBLEMS:,} things wrong with it, the last: it {text}", self._where)

    def nodes(self) -> Iterator[Node]:
        """The members that can be taken. The content of a file has to be read before the next is asked for."""
        pax: dict[str, bytes] = {}
        name = link = b""
        first = True
        while (block := self._stream.block()) is not None:
            if not any(block):
                return
            self._check_sum(block, first)
            first = False
            kind = block[156:157]
            if kind in (b"x", b"X", b"g", b"L", b"K"):
                size = _number(block[124:136], self._where)
                if not 0 <= size <= MAX_HEADER:
                    raise _bad("has an extended header of an impossible size", self._where)
                body = b"".join(self._stream.content(size))
                if kind == b"L":
                    name = body.rstrip(b"\0")
                elif kind == b"K":
                    link = body.rstrip(b"\0")
                elif kind == b"g":
                    if decisive := _DECISIVE & _records(body, self._where).keys():
                        self.problem(
                            f"says the {min(decisive)} of all its paths at once, which some tools take and others do not"
                        )
                else:
                    pax = _records(body, self._where)
                continue
            yield from self._node(block, pax, name, link)
            pax, name, link = {}, b"", b""
        # GNU tar and others end with two zero blocks; Docker takes an archive without them.

    def _check_sum(self, block: bytes, first: bool) -> None:
        told = _number(block[148:156], self._where)
        rest = block[:148] + b" " * 8 + block[156:]
        if told not in (sum(rest), sum(rest) - 256 * sum(byte > 127 for byte in rest)):  # some added up signed bytes
            raise _bad("is no tar, or compressed in a way that cannot be read" if first else "is damaged", self._where)

    def _node(self, block: bytes, pax: dict[str, bytes], name: bytes, link: bytes) -> Iterator[Node]:
        raw = pax.get("path") or name or _plain_name(block)
        target = pax.get("linkpath") or link or block[157:257].split(b"\0", 1)[0]
        kind = _KINDS.get(block[156:157])
        size = _decimal(pax["size"], self._where) if "size" in pax else _number(block[124:136], self._where)
        if size < 0:
            raise _bad("has a size below zero", self._where)
        if kind == "file" and raw.endswith(b"/"):
            kind = "dir"  # as tars were written before there were folders
        has_content = kind in ("file", None)
        more = block[156:157] == b"S" and block[482]
        while more:
            more = self._stream.exactly(BLOCK)[504]  # GNU's list of the parts of a sparse file goes on
        node = self._read(raw, target, kind, block, pax, size)
        if node is not None and node.kind == "file":
            yield node
        else:
            if has_content:
                for _ in self._stream.content(size):
                    pass
            if node is not None:
                yield node

    def _read(self, raw: bytes, target: bytes, kind: Kind | None, block: bytes, pax: dict[str, bytes], size: int) -> Node | None:
        """The member, or None for one that is left out; whatever is wrong with it is named."""
        path = self._path(raw)
        if path is None:
            return None
        if kind is None or any(key.startswith("GNU.sparse.") for key in pax):
            told = "a sparse file" if kind is not None or block[156:157] == b"S" else f"of the type {ascii(block[156:157])[1:]}"
            self.problem(f"has {shown(path)}, which is {told} and cannot be read")
            return None
        folder, _, last = path.rpartition("/")
        if last == OPAQUE:
            return Node(path=folder, kind="opaque")
        if last.startswith(WHITEOUT):
            hidden = last.removeprefix(WHITEOUT)
            if hidden in ("", ".", "..") or hidden.startswith(WHITEOUT):
                self.problem(f"has {shown(path)}, which hides nothing")
                return None
            return Node(path=f"{folder}/{hidden}" if folder else hidden, kind="gone")
        if not path:
            return None  # the root itself
        text = ""
        if kind == "link":
            try:
                text = target.decode()
            except UnicodeDecodeError:
                text = ""
            if not text or "\0" in text or len(target) > MAX_PATH:
                self.problem(f"has the symlink {shown(path)} to nothing that can be a path")
                return None
        elif kind == "hard":
            other = self._path(target)
            if not other:
                return None
            text = other
        return Node(
            path=path,
            kind=kind,
            mode=_number(block[100:108], self._where) & 0o7777,
            uid=_decimal(pax["uid"], self._where) if "uid" in pax else _number(block[108:116], self._where),
            gid=_decimal(pax["gid"], self._where) if "gid" in pax else _number(block[116:124], self._where),
            mtime=_seconds(pax["mtime"], self._where) if "mtime" in pax else _number(block[136:148], self._where),
            size=size if kind == "file" else 0,
            target=text,
            xattrs=_xattrs(pax),
            offset=self._stream.at if kind == "file" else 0,
        )

    def _path(self, raw: bytes) -> str | None:
        """A normal path; empty for the root; None for one that is no path inside it."""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self.problem(f"has a name that is not UTF-8, {shown(raw.decode('latin-1'))}")
            return None
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in text or len(raw) > MAX_PATH or any(len(part.encode()) > 255 for part in parts):
            self.problem(f"has the path {shown(text)}, which is none inside it")
            return None
        return "/".join(parts)


def _twice(nodes: list[Node], problem: Callable[[str], None]) -> None:
    """Paths that come twice, or lie below what is no folder: tools do not agree on them."""
    kinds: dict[str, Kind] = {}
    for node in nodes:
        if node.kind in ("gone", "opaque"):
            continue
        if node.path in kinds and not node.kind == kinds[node.path] == "dir":
            problem(f"has {shown(node.path)} twice")
        kinds[node.path] = node.kind
    for path in kinds:
        folder = path
        while folder := folder.rpartition("/")[0]:
            if kinds.get(folder, "dir") != "dir":
                problem(f"has {shown(path)} below {shown(folder)}, which is no folder in it")
                break


def _plain_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _number(field: bytes, where: str) -> int:
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
        raise _bad("is no tar, or a damaged one", where) from None


def _decimal(value: bytes, where: str) -> int:
    if not (value.isdigit() and len(value) < 19):
        raise _bad("has an extended header with a number that is none", where)
    return int(value)


def _seconds(value: bytes, where: str) -> int:
    """Of a time with a fraction."""
    whole = value.partition(b".")[0]
    return -_decimal(whole[1:], where) if whole[:1] == b"-" else _decimal(whole, where)


def _records(body: bytes, where: str) -> dict[str, bytes]:
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
            raise _bad("has a damaged extended header", where)
        found[key.decode("utf-8", "replace")] = value
        at += length
    return found


def _xattrs(pax: dict[str, bytes]) -> tuple[tuple[str, str], ...]:
    found = {
        key.removeprefix(start): value.decode("latin-1")
        for key, value in pax.items()
        for start in _XATTRS
        if key.startswith(start)
    }
    return tuple(sorted(found.items()))


def _bad(what: str, where: str) -> ArtifactError:
    return ArtifactError(what, where=where, hint="fetch it again, or have it built again")
