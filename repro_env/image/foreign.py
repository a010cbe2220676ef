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

from repro_env.image.entry import Entry
from repro_env.image.foreigntar import Stream, bad, decimal, number, plain_name, records, seconds, xattrs
from repro_env.image.inflated import inflated
from repro_env.image.tar import BLOCK, WHITEOUT

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
    stream = Stream(inflated(chunks, where=where), where, most, sink)
    reader = _Reader(stream, where)
    nodes: list[Node] = []
    kept: dict[str, bytes] = {}
    room = MAX_KEPT
    for node in reader.nodes():
        if len(nodes) >= MAX_NODES:
            raise bad(f"has more than {MAX_NODES:,} paths", where)
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


class _Reader:
    def __init__(self, stream: Stream, where: str) -> None:
        self._stream = stream
        self._where = where
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)
        if len(self.problems) > MAX_PROBLEMS:
            raise bad(f"has more than {MAX_PROBLEMS:,} things wrong with it, the last: it {text}", self._where)

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
                size = number(block[124:136], self._where)
                if not 0 <= size <= MAX_HEADER:
                    raise bad("has an extended header of an impossible size", self._where)
                body = b"".join(self._stream.content(size))
                if kind == b"L":
                    name = body.rstrip(b"\0")
                elif kind == b"K":
                    link = body.rstrip(b"\0")
                elif kind == b"g":
                    if decisive := _DECISIVE & records(body, self._where).keys():
                        self.problem(
                            f"says the {min(decisive)} of all its paths at once, which some tools take and others do not"
                        )
                else:
                    pax = records(body, self._where)
                continue
            yield from self._node(block, pax, name, link)
            pax, name, link = {}, b"", b""
        # GNU tar and others end with two zero blocks; Docker takes an archive without them.

    def _check_sum(self, block: bytes, first: bool) -> None:
        told = number(block[148:156], self._where)
        rest = block[:148] + b" " * 8 + block[156:]
        if told not in (sum(rest), sum(rest) - 256 * sum(byte > 127 for byte in rest)):  # some added up signed bytes
            raise bad("is no tar, or compressed in a way that cannot be read" if first else "is damaged", self._where)

    def _node(self, block: bytes, pax: dict[str, bytes], name: bytes, link: bytes) -> Iterator[Node]:
        raw = pax.get("path") or name or plain_name(block)
        target = pax.get("linkpath") or link or block[157:257].split(b"\0", 1)[0]
        kind = _KINDS.get(block[156:157])
        size = decimal(pax["size"], self._where) if "size" in pax else number(block[124:136], self._where)
        if size < 0:
            raise bad("has a size below zero", self._where)
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
            mode=number(block[100:108], self._where) & 0o7777,
            uid=decimal(pax["uid"], self._where) if "uid" in pax else number(block[108:116], self._where),
            gid=decimal(pax["gid"], self._where) if "gid" in pax else number(block[116:124], self._where),
            mtime=seconds(pax["mtime"], self._where) if "mtime" in pax else number(block[136:148], self._where),
            size=size if kind == "file" else 0,
            target=text,
            xattrs=xattrs(pax),
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
