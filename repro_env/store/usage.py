"""The content of a store: each item with its size on disk and the time of its last use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.oci.config import ImageConfig
from repro_env.store.store import Store

Kind = Literal["blob", "layer", "image", "links", "spec", "fact", "damaged"]
"""- `blob`: a wheel or another archive.
- `layer`: an unpacked layer of an image, of its bytecode or of source code.
- `links`: a tree of links to the files of an image's layers, for kernels that refuse overlay.
- `spec`: the directory of a spec from a bundle file or a registry.
- `fact`: a cached value.
- `damaged`: a damaged layer, kept for a run that still uses it.
"""
DIRECTORIES: dict[Kind, str] = {
    "blob": "blobs",
    "layer": "layers",
    "image": "images",
    "links": "merged",
    "spec": "specs",
    "damaged": "damaged",
}
MARKS: dict[Kind, str] = {"blob": "", "layer": "", "spec": "specs-"}
"""How the names of marks and locks begin, by kind."""
_BLOCK = 512
"""Bytes of a block in stat(2)."""
SIZE = "disk-size"
"""Kind of the facts with the size of a layer on disk. Such a fact is removed with its layer."""


class StoreItem(msgspec.Struct, frozen=True):
    """One item that can be removed by itself."""

    kind: Kind
    name: str
    """The name of its file or directory, mostly the hex digest. For a fact, with the kind of fact in front."""
    size: int
    """Bytes on disk."""
    used: float
    """The time of its last use, in seconds since 1970."""


class StoredImage(msgspec.Struct, frozen=True):
    """An image and its layers."""

    name: str
    """Its ID in hex."""
    layers: tuple[str, ...]
    """Its diff IDs in hex, lowest first."""
    spec: str
    """The digest of its spec; empty if the image has no label."""
    used: float


class Inventory(msgspec.Struct, frozen=True):
    """Everything in a store."""

    things: tuple[StoreItem, ...]
    """By kind, then by name."""
    images: tuple[StoredImage, ...]
    other: int
    """Bytes that garbage collection does not remove: cached hashes, marks, locks, temporary files of living processes."""

    @property
    def size(self) -> int:
        """Total size on disk in bytes."""
        return sum(item.size for item in self.things) + self.other


def inventory(store: Store) -> Inventory:
    """List everything in a store. Items that are removed meanwhile are left out."""
    images = tuple(stored_images(store))
    by_layer: dict[str, float] = {}
    for image in images:
        for name in image.layers:
            by_layer[name] = max(by_layer.get(name, 0.0), image.used)
    things = []
    for kind, directory in DIRECTORIES.items():
        for path in _listed(store.root / directory):
            with contextlib.suppress(OSError):
                things.append(_thing(store, kind, path, by_layer))
    for path in (path for group in _listed(store.root / "facts") for path in _listed(group)):
        with contextlib.suppress(OSError):
            facts = path.stat()
            things.append(StoreItem("fact", f"{path.parent.name}/{path.name}", facts.st_blocks * _BLOCK, facts.st_mtime))
    known_directories = {*DIRECTORIES.values(), "facts"}
    other = sum(disk_size(path) for path in _listed(store.root) if path.name not in known_directories)
    return Inventory(tuple(sorted(things, key=lambda item: (item.kind, item.name))), images, other)


def stored_images(store: Store) -> Iterator[StoredImage]:
    """Yield the images, sorted by ID. This does not count as a use."""
    for path in _listed(store.root / "images"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            config = msgspec.json.decode(path.read_bytes(), type=ImageConfig)
            layers = tuple(diff_id.removeprefix("sha256:") for diff_id in config.diff_ids)
            yield StoredImage(path.name, layers, config.label, path.stat().st_mtime)


def last_used(store: Store, kind: Kind, name: str) -> float:
    """Return the time of the last use of an item."""
    path = store.root / DIRECTORIES.get(kind, "facts") / name
    mark = store.boot.last_used(MARKS[kind] + name) if kind in MARKS else 0.0
    facts = path.stat()
    if kind in ("image", "fact", "spec"):
        return max(mark, facts.st_mtime)
    return mark or facts.st_ctime


def disk_size(path: Path, *, links: bool = True) -> int:
    """Return the bytes on disk of a file, or of a directory with its content.

    A file with several names is counted once; without `links`, it is not counted.
    """
    total = 0
    counted: set[tuple[int, int]] = set()
    directories = [path]
    try:
        facts = path.lstat()
        total = facts.st_blocks * _BLOCK
        if not path.is_dir() or path.is_symlink():
            return total
    except OSError:
        return 0
    while directories:
        with contextlib.suppress(OSError), os.scandir(directories.pop()) as listing:
            for item in listing:
                with contextlib.suppress(OSError):
                    facts = item.stat(follow_symlinks=False)
                    if item.is_dir(follow_symlinks=False):
                        directories.append(Path(item.path))
                    elif facts.st_nlink > 1:
                        key = (facts.st_dev, facts.st_ino)
                        if not links or key in counted:
                            continue
                        counted.add(key)
                    total += facts.st_blocks * _BLOCK
    return total


def _thing(store: Store, kind: Kind, path: Path, by_layer: dict[str, float]) -> StoreItem:
    last_use = last_used(store, kind, path.name)
    if kind == "layer":
        return StoreItem(kind, path.name, _layer_size(store, path), max(last_use, by_layer.get(path.name, 0.0)))
    # A tree of links shares its files with layers.
    return StoreItem(kind, path.name, disk_size(path, links=kind != "links"), last_use)


def _layer_size(store: Store, path: Path) -> int:
    """Return the size of a layer on disk. It is computed once, because layers do not change."""
    size = store.facts.recall(SIZE, path.name, int)
    if size is None:
        size = disk_size(path)
        store.facts.put(SIZE, path.name, str(size).encode())
    return size


def _listed(directory: Path) -> list[Path]:
    """Return the paths in a directory, without temporary and lock files; empty if the directory is missing."""
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith(".") and path.suffix != ".lock")
    except (FileNotFoundError, NotADirectoryError):
        return []
