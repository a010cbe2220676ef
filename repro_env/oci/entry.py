"""One path of an image as data, and paths together with their content.

`Members` is what a source of bytes (live files, a wheel, a blob) hands to a consumer (a hash, a directory, a tar file):
each entry in order, with its content in chunks. No file is held in memory as a whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol
from urllib.parse import unquote

import msgspec

CHUNK = 1 << 20
"""Bytes per read."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A path in canonical form. Its owner is always 0:0, its time `tar.MTIME`, and its mode `tar.mode`."""

    path: str
    """Relative to the image's root, without a leading slash."""
    kind: Literal["file", "dir", "link", "gone"]
    """`link` is a symlink; `gone` removes a path of a lower layer (OCI whiteout)."""
    executable: bool = False
    size: int = 0
    sha256: str = ""
    """Hex sha256 of a file's content. Empty only for entries read from a tar, which is checked as a whole instead."""
    target: str = ""
    """The target of a symlink, unchanged."""

    @classmethod
    def of(cls, path: str, data: bytes, *, executable: bool = False) -> Entry:
        """Return the entry of a file with this content."""
        return cls(path, "file", executable, len(data), hashlib.sha256(data).hexdigest())

    @property
    def key(self) -> bytes:
        """The sort key: the bytes of the path."""
        return self.path.encode()


Member = tuple[Entry, Iterable[bytes]]
Members = Iterable[Member]


class Contents(Protocol):
    """A source of the content of files."""

    def chunks(self, entry: Entry) -> Iterable[bytes]:
        """Return the content of one file entry. Raises `ArtifactError` if it is not available."""
        ...


def sort_with_parents(entries: Iterable[Entry]) -> list[Entry]:
    """Sort entries by the bytes of their paths and add missing parent directories. Of two entries at one path, the last wins."""
    by_path = {entry.path: entry for entry in entries}
    for path in list(by_path):
        while (path := path.rpartition("/")[0]) and path not in by_path:
            by_path[path] = Entry(path, "dir")
    return sorted(by_path.values(), key=lambda entry: entry.key)


def merge(layers: Iterable[Sequence[Entry]]) -> list[Entry]:
    """Return the tree that layers make together, lowest first, each with all parents (OCI image spec, "Applying Changesets")."""
    tree: dict[str, Entry] = {}
    for entries in layers:
        leaves = [entry.path for entry in entries if entry.kind != "dir"]
        if hidden := tuple(f"{path}/" for path in leaves if path in tree and tree[path].kind == "dir"):
            tree = {path: entry for path, entry in tree.items() if not path.startswith(hidden)}
        for entry in entries:
            if entry.kind == "gone":
                tree.pop(entry.path, None)
            else:
                tree[entry.path] = entry
    return sort_with_parents(tree.values())


def file_notes(entries: Iterable[Entry]) -> dict[str, str]:
    """Return the files and symlinks of a tree by path, as a spec lists them (`schema.text.FileNote`).

    `%` and control characters are escaped.
    """
    lines = {}
    for entry in entries:
        if entry.kind == "file":
            lines[escape(entry.path)] = f"{'program' if entry.executable else 'file'} {entry.size} {entry.sha256}"
        elif entry.kind == "link":
            lines[escape(entry.path)] = f"link {escape(entry.target)}"
    return lines


def entries_from_notes(listed: Mapping[str, str]) -> dict[str, Entry]:
    """Return the entries for what `file_notes` returned, by path."""
    entries = {}
    for name, note in listed.items():
        path, (kind, _, value) = unquote(name), note.partition(" ")
        if kind == "link":
            entries[path] = Entry(path, "link", target=unquote(value))
        else:
            size, _, sha256 = value.partition(" ")
            entries[path] = Entry(path, "file", kind == "program", int(size), sha256)
    return entries


def escape(text: str) -> str:
    """Escape `%` and control characters, which stored paths cannot contain."""
    return re.sub(r"[%\x00-\x1f\x7f]", lambda match: f"%{ord(match[0]):02X}", text)


def find_misplaced(entries: Iterable[Entry]) -> str:
    """Return a file or symlink that is below another file or symlink, or empty if there is none."""
    leaves = {entry.path for entry in entries if entry.kind in ("file", "link")}
    checked: set[str] = set()
    for path in sorted(leaves):
        directory = path
        while (directory := directory.rpartition("/")[0]) and directory not in checked:
            if directory in leaves:
                return path
            checked.add(directory)
    return ""


def members(entries: Iterable[Entry], contents: Contents) -> Iterator[Member]:
    """Pair entries with their bytes, in the given order."""
    for entry in entries:
        yield entry, (contents.chunks(entry) if entry.kind == "file" else ())
