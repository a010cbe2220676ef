"""What lies in a store: each thing with its size on disk and the time of its last use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.image.config import LABEL
from repro_env.store.store import Store

Kind = Literal["blob", "layer", "image", "bytecode", "links", "spec", "fact", "damaged"]
"""`blob`: a wheel or another archive. `layer`: an unpacked one, of an image or of source code. `links`: a tree of links to
the files of an image's layers, for kernels that refuse overlay. `spec`: a folder opened from a file or a registry.
`fact`: what was found out once. `damaged`: a layer that was not whole, kept for a run that still has it."""
FOLDERS: dict[Kind, str] = {
    "blob": "blobs",
    "layer": "layers",
    "image": "images",
    "bytecode": "bytecode",
    "links": "merged",
    "spec": "specs",
    "damaged": "damaged",
}
MARKS: dict[Kind, str] = {"blob": "", "layer": "", "bytecode": "bytecode-", "spec": "specs-"}
"""What the names of their marks, and of their locks, begin with."""
_BLOCK = 512
"""Bytes of a block, as stat(2) counts."""
SIZE = "disk-size"
"""Kind of the fact that says a layer's size on disk; it goes with the layer."""


class Thing(msgspec.Struct, frozen=True):
    """One thing that can be removed without any other one."""

    kind: Kind
    name: str
    """Of its file or folder: the hex of its digest, mostly; below `facts` with the kind of fact before."""
    size: int
    """Bytes on disk."""
    used: float
    """When it was used last, in seconds since 1970."""


class Held(msgspec.Struct, frozen=True):
    """An image, and the layers that it is made of."""

    name: str
    """Hex of its ID."""
    layers: tuple[str, ...]
    """Hex of its diff IDs, lowest first."""
    spec: str
    """The spec digest that it was made from; empty where it does not say."""
    used: float


class Inventory(msgspec.Struct, frozen=True):
    things: tuple[Thing, ...]
    """By kind, then by name."""
    images: tuple[Held, ...]
    other: int
    """Bytes of what is never removed by itself: the cache of hashes, marks, locks, temporary files of living processes."""

    @property
    def size(self) -> int:
        return sum(one.size for one in self.things) + self.other


def inventory(store: Store) -> Inventory:
    """Everything. What vanishes meanwhile is not in it."""
    images = tuple(held(store))
    by_layer: dict[str, float] = {}
    for image in images:
        for name in image.layers:
            by_layer[name] = max(by_layer.get(name, 0.0), image.used)
    things = []
    for kind, folder in FOLDERS.items():
        for path in _listed(store.root / folder):
            with contextlib.suppress(OSError):
                things.append(_thing(store, kind, path, by_layer))
    for path in (each for group in _listed(store.root / "facts") for each in _listed(group)):
        with contextlib.suppress(OSError):
            facts = path.stat()
            things.append(Thing("fact", f"{path.parent.name}/{path.name}", facts.st_blocks * _BLOCK, facts.st_mtime))
    known = {*FOLDERS.values(), "facts"}
    other = sum(size_of(path) for path in _listed(store.root) if path.name not in known)
    return Inventory(tuple(sorted(things, key=lambda one: (one.kind, one.name))), images, other)


def held(store: Store) -> Iterator[Held]:
    """The images, sorted by ID. Their own last use is not changed by it."""
    for path in _listed(store.root / "images"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            config = msgspec.json.decode(path.read_bytes(), type=_Config)
            layers = tuple(one.removeprefix("sha256:") for one in config.rootfs.diff_ids)
            yield Held(path.name, layers, config.config.Labels.get(LABEL, ""), path.stat().st_mtime)


def used(store: Store, kind: Kind, name: str) -> float:
    """When a thing was used last."""
    path = store.root / FOLDERS.get(kind, "facts") / name
    mark = store.boot.used(MARKS[kind] + name) if kind in MARKS else 0.0
    facts = path.stat()
    if kind in ("image", "fact", "spec"):
        return max(mark, facts.st_mtime)
    return mark or facts.st_ctime


def size_of(path: Path, *, links: bool = True) -> int:
    """Bytes on disk of a file, or of a folder and all below it; a file with several names once, without `links` not at all."""
    total = 0
    seen: set[tuple[int, int]] = set()
    folders = [path]
    try:
        facts = path.lstat()
        total = facts.st_blocks * _BLOCK
        if not path.is_dir() or path.is_symlink():
            return total
    except OSError:
        return 0
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as listing:
            for item in listing:
                with contextlib.suppress(OSError):
                    facts = item.stat(follow_symlinks=False)
                    if item.is_dir(follow_symlinks=False):
                        folders.append(Path(item.path))
                    elif facts.st_nlink > 1:
                        key = (facts.st_dev, facts.st_ino)
                        if not links or key in seen:
                            continue
                        seen.add(key)
                    total += facts.st_blocks * _BLOCK
    return total


def _thing(store: Store, kind: Kind, path: Path, by_layer: dict[str, float]) -> Thing:
    when = used(store, kind, path.name)
    if kind == "layer":
        return Thing(kind, path.name, _layer_size(store, path), max(when, by_layer.get(path.name, 0.0)))
    # The files of such a tree are the layers' own.
    return Thing(kind, path.name, size_of(path, links=kind != "links"), when)


def _layer_size(store: Store, path: Path) -> int:
    """A layer does not change, so its files are counted once."""
    known = store.facts.recall(SIZE, path.name, int)
    if known is None:
        known = size_of(path)
        store.facts.put(SIZE, path.name, str(known).encode())
    return known


def _listed(folder: Path) -> list[Path]:
    """What lies in a folder, temporary and lock files apart; nothing where there is no such folder."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix != ".lock")
    except (FileNotFoundError, NotADirectoryError):
        return []


class _Labels(msgspec.Struct):
    Labels: dict[str, str] = {}


class _Rootfs(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    config: _Labels
    rootfs: _Rootfs
