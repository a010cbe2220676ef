"""Read a layer that any tool wrote: its tar -> one node for each path. Nothing is unpacked.

Reads old, ustar, pax and GNU headers as Docker and containerd do (OCI image spec, "Image Layer Filesystem Changeset").
Layers are untrusted: a member that cannot be represented (a path that leaves the root, a hard link to nothing, a sparse
file) is left out and reported as a problem. A file that is not a tar is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from repro_env.oci import tar
from repro_env.oci.decompression import decompress
from repro_env.oci.entry import Entry
from repro_env.oci.tar import BLOCK, WHITEOUT
from repro_env.oci.tarstream import Stream, bad, decimal, number, plain_name, records, seconds, xattrs

MAX_UNPACKED = 256 << 30
"""Largest tar of one layer, in bytes."""
MAX_NODES = 2_000_000
"""Most paths of one layer."""
MAX_HEADER = 1 << 20
"""Largest extended header (pax or GNU), in bytes."""
MAX_PATH = 4096
"""Longest path in bytes, as in Linux."""
MAX_PROBLEMS = 1000
OPAQUE = ".wh..wh..opq"
"""Hides everything that lower layers have in its directory."""

_PATH_FIELDS = {"path", "linkpath", "size"}
"""Fields that a pax header may not set for all members at once."""

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
    """Normal path relative to the image's root. For a whiteout the hidden path, for `opaque` the directory."""
    kind: Kind
    mode: int = 0o755
    """Permission bits, including set-uid, set-gid and sticky."""
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    """Seconds since 1970."""
    size: int = 0
    """Size of a file in bytes."""
    sha256: str = ""
    """Hex sha256 of a file's content."""
    target: str = ""
    """The unchanged target of a symlink; the path that a hard link points to."""
    xattrs: tuple[tuple[str, str], ...] = ()
    """Names and values, sorted. A value is the bytes in the tar, decoded as Latin-1."""
    offset: int = 0
    """Where a file's content begins in the uncompressed tar."""

    @property
    def executable(self) -> bool:
        return bool(self.mode & 0o100)


class ScannedLayer(msgspec.Struct, frozen=True):
    """The content of one layer."""

    diff_id: str
    """Computed from the bytes that were read."""
    size: int
    """Size of the tar in bytes."""
    nodes: tuple[Node, ...]
    """In the order of the tar."""
    problems: tuple[str, ...]
    """Members that were left out, with the reason, and what tools may read differently."""


def scan(
    chunks: Iterable[bytes],
    *,
    where: str,
    limit: int = MAX_UNPACKED,
    sink: Callable[[bytes], object] | None = None,
) -> ScannedLayer:
    """Read a layer once, compressed or not. `sink` gets the bytes of the tar.

    Raises `ArtifactError` if it is damaged, truncated, not a tar, or larger than `limit` bytes.
    """
    stream = Stream(decompress(chunks, where=where), where, limit, sink)
    reader = _Reader(stream, where)
    nodes: list[Node] = []
    for node in reader.nodes():
        if len(nodes) >= MAX_NODES:
            raise bad(f"the layer has more than {MAX_NODES:,} paths", where)
        if node.kind != "file":
            nodes.append(node)
            continue
        hasher = hashlib.sha256()
        for chunk in stream.content(node.size):
            hasher.update(chunk)
        nodes.append(msgspec.structs.replace(node, sha256=hasher.hexdigest()))
    diff_id = stream.finish(reader.problem)
    _report_conflicts(nodes, reader.problem)
    return ScannedLayer(diff_id, stream.at, tuple(nodes), tuple(reader.problems))


def to_entry(node: Node) -> Entry | None:
    """Return the node in canonical form; None for a device or pipe. `imagetree` resolves hard links before."""
    if node.kind == "file":
        return Entry(node.path, "file", node.executable, node.size, node.sha256)
    if node.kind == "link":
        return Entry(node.path, "link", target=node.target)
    return Entry(node.path, "dir") if node.kind == "dir" else None


def to_node(entry: Entry) -> Node:
    """Return an entry in canonical form as a member of a layer's tar."""
    return Node(
        path=entry.path,
        kind=entry.kind,
        mode=tar.mode(entry),
        size=entry.size,
        sha256=entry.sha256,
        target=entry.target,
    )


def printable(path: str) -> str:
    """Return an untrusted path in a form that is safe to print."""
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
            raise bad(f"the layer has more than {MAX_PROBLEMS:,} problems; the last: {text}", self._where)

    def nodes(self) -> Iterator[Node]:
        """Yield the members that can be represented. Read the content of a file before the next member."""
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
                    raise bad("the layer has an extended header of an impossible size", self._where)
                body = b"".join(self._stream.content(size))
                if kind == b"L":
                    name = body.rstrip(b"\0")
                elif kind == b"K":
                    link = body.rstrip(b"\0")
                elif kind == b"g":
                    if fields := _PATH_FIELDS & records(body, self._where).keys():
                        self.problem(
                            f"the layer sets the {min(fields)} of all its paths at once, which some tools apply and others ignore"
                        )
                else:
                    pax = records(body, self._where)
                continue
            yield from self._node(block, pax, name, link)
            pax, name, link = {}, b"", b""
        # GNU tar and others end with two zero blocks; Docker takes an archive without them.

    def _check_sum(self, block: bytes, first: bool) -> None:
        expected = number(block[148:156], self._where)
        covered = block[:148] + b" " * 8 + block[156:]
        if expected not in (
            sum(covered),
            sum(covered) - 256 * sum(byte > 127 for byte in covered),
        ):  # some tools add signed bytes
            raise bad(
                "the layer is not a tar, or its compression is not supported" if first else "the layer is damaged", self._where
            )

    def _node(self, block: bytes, pax: dict[str, bytes], name: bytes, link: bytes) -> Iterator[Node]:
        name_bytes = pax.get("path") or name or plain_name(block)
        target = pax.get("linkpath") or link or block[157:257].split(b"\0", 1)[0]
        kind = _KINDS.get(block[156:157])
        size = decimal(pax["size"], self._where) if "size" in pax else number(block[124:136], self._where)
        if size < 0:
            raise bad("the layer has a negative file size", self._where)
        if kind == "file" and name_bytes.endswith(b"/"):
            kind = "dir"  # very old tars mark directories this way
        has_content = kind in ("file", None)
        continued = block[156:157] == b"S" and block[482]
        while continued:
            continued = self._stream.exactly(BLOCK)[504]  # GNU's list of the parts of a sparse file continues
        node = self._read(name_bytes, target, kind, block, pax, size)
        if node is not None and node.kind == "file":
            yield node
        else:
            if has_content:
                for _ in self._stream.content(size):
                    pass
            if node is not None:
                yield node

    def _read(
        self, name_bytes: bytes, target: bytes, kind: Kind | None, block: bytes, pax: dict[str, bytes], size: int
    ) -> Node | None:
        """Return the member, or None if it is left out. Problems are reported."""
        path = self._path(name_bytes)
        if path is None:
            return None
        if kind is None or any(key.startswith("GNU.sparse.") for key in pax):
            kind_text = (
                "a sparse file" if kind is not None or block[156:157] == b"S" else f"a member of type {ascii(block[156:157])[1:]}"
            )
            self.problem(f"{printable(path)} is {kind_text} and cannot be read")
            return None
        directory, _, last = path.rpartition("/")
        if last == OPAQUE:
            return Node(path=directory, kind="opaque")
        if last.startswith(WHITEOUT):
            hidden = last.removeprefix(WHITEOUT)
            if hidden in ("", ".", "..") or hidden.startswith(WHITEOUT):
                self.problem(f"{printable(path)} is a whiteout without a name")
                return None
            return Node(path=f"{directory}/{hidden}" if directory else hidden, kind="gone")
        if not path:
            return None  # the root itself
        text = ""
        if kind == "link":
            try:
                text = target.decode()
            except UnicodeDecodeError:
                text = ""
            if not text or "\0" in text or len(target) > MAX_PATH:
                self.problem(f"the symlink {printable(path)} has an invalid target")
                return None
        elif kind == "hard":
            linked = self._path(target)
            if not linked:
                return None
            text = linked
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

    def _path(self, name_bytes: bytes) -> str | None:
        """Return the normal path, or empty for the root; None if it does not stay inside the root."""
        try:
            text = name_bytes.decode()
        except UnicodeDecodeError:
            self.problem(f"the layer has a name that is not UTF-8: {printable(name_bytes.decode('latin-1'))}")
            return None
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in text or len(name_bytes) > MAX_PATH or any(len(part.encode()) > 255 for part in parts):
            self.problem(f"the path {printable(text)} is not a path inside the image")
            return None
        return "/".join(parts)


def _report_conflicts(nodes: list[Node], problem: Callable[[str], None]) -> None:
    """Report paths that occur twice or are below a path that is not a directory: tools handle them differently."""
    kinds: dict[str, Kind] = {}
    for node in nodes:
        if node.kind in ("gone", "opaque"):
            continue
        if node.path in kinds and not node.kind == kinds[node.path] == "dir":
            problem(f"{printable(node.path)} occurs twice")
        kinds[node.path] = node.kind
    for path in kinds:
        directory = path
        while directory := directory.rpartition("/")[0]:
            if kinds.get(directory, "dir") != "dir":
                problem(f"{printable(path)} is below {printable(directory)}, which is not a directory in this layer")
                break
