"""A tree of a spec, an image or the live machine by its paths: what `check` and `diff` compare."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from repro_env.base.tree import Tree
from repro_env.image.entry import Entry
from repro_env.io.files import FileContents, Found, walk
from repro_env.io.hashes import FileHashes
from repro_env.model.artifact import TreeBlob
from repro_env.store.carried import Carried
from repro_env.store.store import Store

SMALL = 1 << 20
"""Bytes of a file that is read to say in what it differs."""


class Held(Protocol):
    """A tree whose paths can be told."""

    def entries(self) -> Mapping[str, Entry]:
        """By path from the image's root, folders included; every file with its sha256. Raises `ArtifactError` when damaged."""
        ...

    def entry(self, path: str) -> Entry | None:
        """One path."""
        ...

    def contents(self, paths: Collection[str], most: int = SMALL) -> dict[str, bytes]:
        """The bytes of those of these files that have `most` at most, as far as they are at hand."""
        ...


def captured(blob: TreeBlob | None, folder: Path, store: Store) -> Held | None:
    """A tree that a spec names: unpacked in the store, else the blob in `folder/blobs`; None when it is in neither."""
    if blob is None:
        return Listed(())
    there = store.layers.path(blob.sha256)
    if there is not None:
        return Stored(there, store.hashes)
    carried = Carried(folder / "blobs")
    return Blob(carried, blob) if carried.path(blob.sha256) is not None else None


class Listed:
    """Entries alone: what is in the files is not at hand."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.path: entry for entry in entries}

    def entries(self) -> Mapping[str, Entry]:
        return self._entries

    def entry(self, path: str) -> Entry | None:
        return self._entries.get(path)

    def contents(self, paths: Collection[str], most: int = SMALL) -> dict[str, bytes]:  # noqa: ARG002
        return {}


class Live:
    """A tree cut from this machine, hashed and not written."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def entries(self) -> Mapping[str, Entry]:
        return {entry.path: entry for entry in self._tree.entries}

    def entry(self, path: str) -> Entry | None:
        return self.entries().get(path)

    def contents(self, paths: Collection[str], most: int = SMALL) -> dict[str, bytes]:
        return {
            entry.path: b"".join(self._tree.contents.chunks(entry))
            for entry in self._tree.entries
            if entry.path in paths and entry.kind == "file" and entry.size <= most
        }


class Stored:
    """An unpacked layer."""

    def __init__(self, root: Path, hashes: FileHashes) -> None:
        self._root = root
        self._hashes = hashes
        self._entries: dict[str, Entry] = {}

    def entries(self) -> Mapping[str, Entry]:
        if not self._entries:
            found = tuple(walk(self._root))
            known = self._hashes.of(self._root, found)
            self._entries = {one.path: self._made(one, one.path, known.get(one.path, "")) for one in found}
        return self._entries

    def entry(self, path: str) -> Entry | None:
        """Without a look at the whole layer, which may be large. A symlink on the way leads out of the layer: no entry."""
        folder, _, name = path.rpartition("/")
        here = self._root / folder
        if not os.path.lexists(here / name) or here.resolve() != self._root.resolve() / folder:
            return None
        found = next(walk(here, skip=lambda one, _: one != name), None)
        if found is None:
            return None
        known = self._hashes.of(here, (found,))
        return self._made(found, path, known.get(name, ""))

    def contents(self, paths: Collection[str], most: int = SMALL) -> dict[str, bytes]:
        live = FileContents(self._root)
        entries = self.entries()
        wanted = [entries[path] for path in paths if path in entries]
        return {one.path: b"".join(live.chunks(one)) for one in wanted if one.kind == "file" and one.size <= most}

    @staticmethod
    def _made(found: Found, path: str, sha256: str) -> Entry:
        # A removed path is a device 0:0 there (overlayfs), and nothing else is a device.
        kind = "gone" if found.kind == "other" else found.kind
        return Entry(path, kind, found.executable, found.size, sha256, found.target)


class Blob:
    """A carried tree, read from its compressed tar and never unpacked."""

    def __init__(self, carried: Carried, blob: TreeBlob) -> None:
        self._carried = carried
        self._blob = blob
        self._entries: dict[str, Entry] = {}

    def entries(self) -> Mapping[str, Entry]:
        if not self._entries:
            found = {}
            for entry, chunks in self._carried.tree(self._blob):
                hasher = hashlib.sha256()
                for chunk in chunks:
                    hasher.update(chunk)
                digest = hasher.hexdigest() if entry.kind == "file" else ""
                found[entry.path] = Entry(entry.path, entry.kind, entry.executable, entry.size, digest, entry.target)
            self._entries = found
        return self._entries

    def entry(self, path: str) -> Entry | None:
        return self.entries().get(path)

    def contents(self, paths: Collection[str], most: int = SMALL) -> dict[str, bytes]:
        found = {}
        for entry, chunks in self._carried.tree(self._blob):
            wanted = entry.path in paths and entry.kind == "file" and entry.size <= most
            data = [chunk for chunk in chunks if wanted]
            if wanted:
                found[entry.path] = b"".join(data)
        return found
