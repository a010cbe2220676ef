"""One path of an image, as data; and the pairing of paths with their bytes.

`Members` is what flows between a source of bytes (live files, a wheel, a blob) and a sink (a hash,
a folder, a tar file): each entry in order, with its content in chunks. Nobody holds a whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol
from urllib.parse import unquote

import msgspec

from repro_env.model.errors import CaptureError

CHUNK = 1 << 20
"""Bytes per read."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A path in canonical form. Owner is always 0:0, the time always `tar.MTIME`, the mode `tar.mode`."""

    path: str
    """Relative to the image's root; no leading slash."""
    kind: Literal["file", "dir", "link", "gone"]
    """`link` is a symlink; `gone` removes a path of a lower layer (OCI whiteout)."""
    executable: bool = False
    size: int = 0
    sha256: str = ""
    """Hex, of a file's content; empty only for entries read back from a tar, whose whole is checked instead."""
    target: str = ""
    """Of a symlink, as it is written."""

    @property
    def key(self) -> bytes:
        """Sort key: the path's bytes."""
        return self.path.encode()


Member = tuple[Entry, Iterable[bytes]]
Members = Iterable[Member]


class Contents(Protocol):
    """Where the bytes of files come from."""

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        """The content of one file entry. Raises `ArtifactError` when it cannot be had."""
        ...


def ordered(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted by the bytes of the path, every parent directory present; the last of two entries on one path wins."""
    by_path = {entry.path: entry for entry in entries}
    for path in list(by_path):
        while (path := path.rpartition("/")[0]) and path not in by_path:
            by_path[path] = Entry(path, "dir")
    return sorted(by_path.values(), key=lambda entry: entry.key)


def notes(entries: Iterable[Entry]) -> dict[str, str]:
    """The files and symlinks of a tree as a spec lists them (`model.text.FileNote`), by path. `%` and control characters are escaped."""
    found = {}
    for entry in entries:
        if entry.kind == "file":
            found[_escaped(entry.path)] = f"{'program' if entry.executable else 'file'} {entry.size} {entry.sha256}"
        elif entry.kind == "link":
            found[_escaped(entry.path)] = f"link {_escaped(entry.target)}"
    return found


def of_notes(listed: Mapping[str, str]) -> dict[str, Entry]:
    """The entries that `notes` wrote down, by path."""
    found = {}
    for name, note in listed.items():
        path, (kind, _, rest) = unquote(name), note.partition(" ")
        if kind == "link":
            found[path] = Entry(path, "link", target=unquote(rest))
        else:
            size, _, sha256 = rest.partition(" ")
            found[path] = Entry(path, "file", kind == "program", int(size), sha256)
    return found


def _escaped(text: str) -> str:
    return re.sub(r"[%\x00-\x1f\x7f]", lambda found: f"%{ord(found[0]):02X}", text)


def misplaced(entries: Sequence[Entry]) -> str:
    """The path of a file or symlink that lies below another one, where only a folder can be; empty when there is none."""
    solid = {entry.path for entry in entries if entry.kind in ("file", "link")}
    seen: set[str] = set()
    for path in sorted(solid):
        folder = path
        while (folder := folder.rpartition("/")[0]) and folder not in seen:
            if folder in solid:
                return path
            seen.add(folder)
    return ""


class Listed(Protocol):
    """What a walked path has to tell (`io.files.Found`)."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def executable(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def target(self) -> str: ...


def entries_of(found: Iterable[Listed], hashes: Mapping[str, str], *, below: str = "") -> list[Entry]:
    """Walked paths as entries, placed below a path of the image. Raises `CaptureError` for devices, sockets and pipes."""
    entries = []
    for one in found:
        path = f"{below}/{one.path}" if below else one.path
        if one.kind == "file":
            entries.append(Entry(path, "file", one.executable, one.size, hashes[one.path]))
        elif one.kind == "link":
            entries.append(Entry(path, "link", target=one.target))
        elif one.kind == "dir":
            entries.append(Entry(path, "dir"))
        else:
            raise CaptureError("is no file, folder or symlink", where=path, hint="remove it, or leave it out with --exclude")
    return entries


def members(entries: Iterable[Entry], contents: Contents) -> Iterator[Member]:
    """Pair entries with their bytes, in the given order."""
    for entry in entries:
        yield entry, (contents.chunks(entry) if entry.kind == "file" else ())
