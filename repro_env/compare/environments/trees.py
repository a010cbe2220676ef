"""Trees of files that are compared: of a spec, the store or the live machine; and the paths in which two trees differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.environment.system.tree import Tree
from repro_env.io.files import FileContents, walk
from repro_env.oci.entry import Contents, Entry
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError
from repro_env.store.hashes import FileHashes
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

SMALL = 1 << 20
"""Most bytes of a file that is read to explain a difference."""
How = Literal["new", "gone", "kind", "content", "mode", "target"]


class FileTree(msgspec.Struct, frozen=True):
    entries: Mapping[str, Entry]
    """All entries, also of directories, by path from the image's root."""
    contents: Callable[[Collection[str]], dict[str, bytes]]
    """Return the bytes of those files that have at most `SMALL` bytes."""


EMPTY = FileTree({}, lambda _: {})


def spec_tree(blob: TreeBlob | None, directory: Path, store: Store) -> FileTree:
    """Return a tree of a spec: unpacked in the store, else from `directory/blobs`.

    Raises `ArtifactError` if neither has it, or if it is damaged.
    """
    if blob is None:
        return EMPTY
    layer = store.layers.path(blob.sha256)
    if layer is not None:
        return stored_tree(layer, store.hashes)
    blobs = SpecBlobs(directory / "blobs")
    if blobs.path(blob.sha256) is None:
        raise ArtifactError("this tree is neither next to the spec nor in the store", where=blob.sha256)
    return FileTree(
        {entry.path: entry for entry in blobs.entries(blob, store.facts)}, lambda paths: _read_blob(blobs, blob, paths)
    )


def live_tree(tree: Tree | None) -> FileTree:
    """Return a tree of files on this machine."""
    return EMPTY if tree is None else _file_tree({entry.path: entry for entry in tree.entries}, tree.contents)


def stored_tree(root: Path, hashes: FileHashes) -> FileTree:
    """Return an unpacked layer in the store."""
    files = tuple(walk(root))
    digests = hashes.of(root, files)
    entries = {}
    for file in files:
        # A removed path is a device 0:0 in a layer (overlayfs), and a layer has no other devices.
        kind = "gone" if file.kind == "other" else file.kind
        entries[file.path] = Entry(file.path, kind, file.executable, file.size, digests.get(file.path, ""), file.target)
    return _file_tree(entries, FileContents(root))


def _file_tree(entries: Mapping[str, Entry], contents: Contents) -> FileTree:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        files = (entries[path] for path in paths if path in entries)
        return {file.path: b"".join(contents.chunks(file)) for file in files if _is_small_file(file)}

    return FileTree(entries, read)


def _read_blob(blobs: SpecBlobs, blob: TreeBlob, paths: Collection[str]) -> dict[str, bytes]:
    """Read files of a bundled tree from its compressed tar, without unpacking it."""
    contents = {}
    for entry, chunks in blobs.tree(blob):
        is_wanted = entry.path in paths and _is_small_file(entry)
        data = [chunk for chunk in chunks if is_wanted]
        if is_wanted:
            contents[entry.path] = b"".join(data)
    return contents


def _is_small_file(entry: Entry) -> bool:
    return entry.kind == "file" and entry.size <= SMALL


class Change(msgspec.Struct, frozen=True):
    path: str
    how: How
    left: Entry | None
    right: Entry | None


def changes(left: Mapping[str, Entry], right: Mapping[str, Entry]) -> tuple[Change, ...]:
    """Return the paths that are new, missing or different, sorted. A directory is listed only if it has no paths in it."""
    parents = {path.rpartition("/")[0] for path in (*left, *right)}
    found = []
    for path in sorted(left.keys() | right.keys()):
        old, new = left.get(path), right.get(path)
        if path in parents and (old is None or old.kind == "dir") and (new is None or new.kind == "dir"):
            continue  # the paths in it are listed
        how = _how(old, new)
        if how is not None:
            found.append(Change(path, how, old, new))
    return tuple(found)


def describe(entry: Entry | None) -> str:
    """Describe a path in a few words; empty if it does not exist."""
    if entry is None:
        return ""
    if entry.kind == "link":
        return f"link to {entry.target}"
    if entry.kind == "dir":
        return "empty directory"
    if entry.kind == "gone":
        return "removed"
    return f"{'program' if entry.executable else 'file'}, {entry.size:,} bytes, sha256 {entry.sha256[:12]}"


def _how(old: Entry | None, new: Entry | None) -> How | None:
    if old is None:
        return None if new is None else "new"
    if new is None:
        return "gone"
    if old.kind != new.kind:
        return "kind"
    if old.target != new.target:
        return "target"
    if old.sha256 != new.sha256:
        return "content"
    return "mode" if old.executable != new.executable else None
