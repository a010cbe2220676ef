"""The content of a store, and garbage collection: what was not used for long is renamed out of the way, then deleted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import try_lock
from repro_env.oci.config import ImageConfig
from repro_env.store.store import Store

Kind = Literal["blob", "layer", "image", "links", "spec", "fact", "damaged"]
"""- `blob`: a wheel or another archive.
- `layer`: an unpacked layer of an image, of its bytecode or of source code.
- `image`: the config of an image.
- `links`: a tree of links to the files of an image's layers, for kernels that refuse overlay, or to its bytecode.
- `spec`: the directory of a spec from a bundle file or a registry.
- `fact`: a cached value.
- `damaged`: a damaged layer, kept for a run that still uses it.
"""
_DIRECTORIES: dict[Kind, str] = {
    "blob": "blobs",
    "layer": "layers",
    "image": "images",
    "links": "merged",
    "spec": "specs",
    "damaged": "damaged",
}
_MARKS: dict[Kind, str] = {"blob": "", "layer": "", "image": "", "spec": "specs-"}
"""How the names of marks begin, by kind. Other items have the time of their own file."""
_BLOCK = 512
"""Bytes of a block in stat(2)."""
_DAY = 86400.0


class StoreItem(msgspec.Struct, frozen=True):
    """One item that can be removed by itself."""

    kind: Kind
    name: str
    """The name of its file or directory, mostly the hex digest. For a fact, with the kind of fact in front."""
    size: int
    """Bytes on disk."""
    used: float
    """The time of its last use, in seconds since 1970."""
    layers: tuple[str, ...] = ()
    """The diff IDs of an image, in hex."""


class Inventory(msgspec.Struct, frozen=True):
    """Everything in a store."""

    items: tuple[StoreItem, ...]
    """The least recently used first."""
    other: int
    """Bytes that garbage collection does not remove: marks, locks, temporary files of living processes."""

    @property
    def size(self) -> int:
        """Total size on disk in bytes."""
        return sum(item.size for item in self.items) + self.other


def inventory(store: Store) -> Inventory:
    """List everything in a store. Items that are removed meanwhile are left out."""
    counted: set[tuple[int, int]] = set()
    items: list[StoreItem] = []
    for kind, directory in _DIRECTORIES.items():
        for path in _listed(store.root / directory):
            with contextlib.suppress(OSError):
                used = store.boot.last_used(_MARKS[kind] + path.name) if kind in _MARKS else 0.0
                layers = _layers_of(path) if kind == "image" else ()
                items.append(StoreItem(kind, path.name, _disk_size(path, counted), used or path.stat().st_mtime, layers))
    for path in (path for group in _listed(store.root / "facts") for path in _listed(group)):
        with contextlib.suppress(OSError):
            items.append(StoreItem("fact", f"{path.parent.name}/{path.name}", _disk_size(path, counted), path.stat().st_mtime))
    known_directories = {*_DIRECTORIES.values(), "facts"}
    other = sum(_disk_size(path, counted) for path in _listed(store.root) if path.name not in known_directories)
    return Inventory(tuple(sorted(items, key=lambda item: (item.used, item.kind, item.name))), other)


def choose(
    found: Inventory, in_use: Collection[str], *, now: float, keep_days: float | None, max_size: int | None
) -> tuple[StoreItem, ...]:
    """Return what to remove, images and links before layers. What is in `in_use` (hex names) is never removed.

    `keep_days`: remove everything that was not used for so many days. `max_size`: remove the least recently used until the
    store has at most so many bytes; facts are kept, because they are small and take the longest to compute again.
    """
    removable = [item for item in found.items if item.name.partition(".")[0] not in in_use]
    chosen = {item for item in removable if item.kind == "damaged"}
    size = found.size - sum(item.size for item in chosen)
    for item in removable:
        is_old = keep_days is not None and item.used < now - keep_days * _DAY
        is_too_large = max_size is not None and size > max_size and item.kind != "fact"
        if item not in chosen and (is_old or is_too_large):
            chosen.add(item)
            size -= item.size
    layers = {item.name for item in found.items if item.kind == "layer" and item not in chosen}
    chosen |= {item for item in removable if item.kind == "image" and not layers.issuperset(item.layers)}
    images = {item.name for item in found.items if item.kind == "image" and item not in chosen}
    chosen |= {item for item in removable if item.kind == "links" and item.name.partition(".")[0] not in images}
    return tuple(sorted(chosen, key=lambda item: (item.kind not in ("image", "links"), item.kind, item.name)))


def move_away(store: Store, items: Iterable[StoreItem], target: Path) -> None:
    """Move items into an empty directory of the store, while no other command runs (`Lease.exclusive`).

    Marks and locks of missing items are removed too. If this is killed, no incomplete item looks complete.
    """
    for number, item in enumerate(items):
        (store.root / _DIRECTORIES.get(item.kind, "facts") / item.name).rename(target / str(number))
    for path in _listed(store.root / "boot"):
        if not any(
            (store.root / _DIRECTORIES[kind] / path.name.removeprefix(prefix)).exists() for kind, prefix in _MARKS.items()
        ):
            path.unlink()
    for path in (*_listed(store.root / "locks"), *(store.root / "merged").glob("*.lock")):
        with path.open() as file:
            if try_lock(file.fileno()):
                path.unlink()


def _layers_of(path: Path) -> tuple[str, ...]:
    try:
        config = msgspec.json.decode(path.read_bytes(), type=ImageConfig)
    except msgspec.MsgspecError:
        return ()
    return tuple(diff_id.removeprefix("sha256:") for diff_id in config.diff_ids)


def _disk_size(path: Path, counted: set[tuple[int, int]]) -> int:
    """Return the bytes on disk of a file, or of a directory with its content. A file with several names is counted once."""
    total = 0
    paths = [str(path)]
    for directory, directories, files in os.walk(path):
        paths += (os.path.join(directory, name) for name in (*directories, *files))  # noqa: PTH118 - a path object takes longer
    for name in paths:
        with contextlib.suppress(OSError):
            facts = os.lstat(name)
            if (facts.st_dev, facts.st_ino) not in counted:
                counted.add((facts.st_dev, facts.st_ino))
                total += facts.st_blocks * _BLOCK
    return total


def _listed(directory: Path) -> list[Path]:
    """Return the paths in a directory, without temporary and lock files; empty if the directory is missing."""
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith(".") and path.suffix != ".lock")
    except (FileNotFoundError, NotADirectoryError):
        return []
