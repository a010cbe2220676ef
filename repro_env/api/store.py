"""The commands `repro-env store`: measure the store, remove unused items, and check all items for damage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.runs.records.index import Index
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.progress import Tell
from repro_env.store import garbage
from repro_env.store.rundirectories import AWAY
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
from repro_env.store.usage import DIRECTORIES, StoreItem, inventory

PATIENCE = 60.0
"""Seconds that a removal waits for running commands."""
_CHECKED = frozenset({"blob", "layer", "image", "spec"})
"""Kinds of items that `verify` reads. Links are files of the layers, and facts are checked whenever they are read."""


class ImageUse(msgspec.Struct, frozen=True):
    """Disk use of an image."""

    image_id: str
    spec: str
    used: float
    """Last use, in seconds since 1970."""
    layers: int
    own: int
    """Bytes that its removal frees: its links, and layers that no other image has."""
    shared: int
    """Bytes of the layers that it shares with other images."""
    running: bool


class Usage(msgspec.Struct, frozen=True):
    root: str
    kinds: dict[str, tuple[int, int]]
    """Kind -> (number of items, bytes on disk)."""
    other: int
    images: tuple[ImageUse, ...]
    """Most recently used first."""
    unbound: int
    """Bytes of layers without an image: source code of runs, bytecode, and leftovers of interrupted builds."""

    @property
    def size(self) -> int:
        return sum(size for _, size in self.kinds.values()) + self.other


class Collected(msgspec.Struct, frozen=True):
    things: tuple[StoreItem, ...]
    before: int
    """Bytes of the store."""
    dry_run: bool

    @property
    def freed(self) -> int:
        return sum(item.size for item in self.things)


class Verified(msgspec.Struct, frozen=True):
    checked: int
    damaged: tuple[StoreItem, ...]
    repaired: bool


def measure(store: Store) -> Usage:
    """Return the disk use of the store, by kind and by image."""
    found = inventory(store)
    in_use = store.lease.names_in_use()
    kinds: dict[str, tuple[int, int]] = {}
    for item in found.things:
        count, size = kinds.get(item.kind, (0, 0))
        kinds[item.kind] = (count + 1, size + item.size)
    layers = {item.name: item.size for item in found.things if item.kind == "layer"}
    holders: dict[str, int] = {}
    for image in found.images:
        for name in set(image.layers):
            holders[name] = holders.get(name, 0) + 1
    bound: dict[str, int] = {}
    for item in found.things:
        if item.kind in ("image", "links"):
            bound[item.name] = bound.get(item.name, 0) + item.size
    images = [
        ImageUse(
            image_id=f"sha256:{image.name}",
            spec=image.spec,
            used=image.used,
            layers=len(image.layers),
            own=bound.get(image.name, 0) + sum(layers.get(name, 0) for name in set(image.layers) if holders[name] == 1),
            shared=sum(layers.get(name, 0) for name in set(image.layers) if holders[name] > 1),
            running=image.name in in_use,
        )
        for image in found.images
    ]
    return Usage(
        root=str(store.root),
        kinds=kinds,
        other=found.other,
        images=tuple(sorted(images, key=lambda image: (-image.used, image.image_id))),
        unbound=sum(size for name, size in layers.items() if name not in holders),
    )


def collect(
    store: Store, *, keep_days: float | None, max_size: int | None, dry_run: bool, tell: Tell, patience: float = PATIENCE
) -> Collected:
    """Remove items that were not used for `keep_days`, and further items until the store has `max_size` bytes.

    The source of a recorded run stays as long as its record, because it may exist nowhere else. Raises `StoreError`.
    """
    since = time.time()
    found = inventory(store)
    protected = store.lease.names_in_use() | _sources(store, tell)
    items = garbage.choose(found, protected, now=since, keep_days=keep_days, max_size=max_size)
    if dry_run:
        return Collected(items, found.size, dry_run=True)
    if items:
        tell.detail(f"removing {len(items):,} of {len(found.things):,} items")
    with tell.progress(0, "removing"):
        removed = garbage.remove(store, items, since=since, patience=patience)
    return Collected(removed, found.size, dry_run=False)


def _sources(store: Store, tell: Tell) -> frozenset[str]:
    """Return the source trees (hex) of recorded runs, which are kept. Warn about records that cannot be read.

    A missing runs directory may be on a disk that is not mounted, so its remembered runs count for a while.
    """
    index = Index(store.runs)
    digests: set[str] = set()
    missing: list[str] = []
    for directory in store.run_directories.paths():
        exists = directory.is_dir()
        if not exists and store.run_directories.last_used(directory) < time.time() - AWAY:
            missing.append(str(directory))
            continue
        try:
            listing = index.listing(directory) if exists else index.last_listing(directory)
        except (OSError, ReproEnvError) as error:
            tell.warn(f"note: these runs cannot be read, so their source code may be removed: {error}")
            continue
        digests.update(digest.removeprefix("sha256:") for run in listing.runs for digest in run.source_trees)
        for unreadable in listing.unreadable:
            tell.warn(f"note: this run cannot be read, so its source code may be removed: {unreadable.why}")
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        tell.warn(f"note: the source code of runs in a missing directory may be removed: {missing[0]}{more}")
    return frozenset(digests)


def verify(store: Store, *, repair: bool, tell: Tell) -> Verified:
    """Read every item, and return those that do not have the digest in their name. `repair`: remove them, to be built again."""
    found = inventory(store)
    items = [item for item in found.things if item.kind in _CHECKED]
    damaged: list[StoreItem] = []
    with tell.progress(sum(item.size for item in items), "reading") as advance, ThreadPoolExecutor() as pool:
        for item, intact in zip(items, pool.map(lambda item: _is_intact(store, item), items), strict=True):
            advance(item.size)
            if not intact:
                damaged.append(item)
    if repair:
        for item in damaged:
            _remove(store, item)
    return Verified(len(items), tuple(damaged), repaired=repair)


def _is_intact(store: Store, item: StoreItem) -> bool:
    """Whether an item is undamaged, or was removed in the meantime."""
    path = store.root / DIRECTORIES[item.kind] / item.name
    checks: dict[str, Callable[[], bool]] = {
        "blob": lambda: store.blobs.verify(item.name),
        "layer": lambda: store.layers.verify(item.name),
        "image": lambda: store.images.verify(item.name),
        "spec": lambda: all(_is_spec_blob(path, blob) for blob in (path / "blobs").glob("[0-9a-f]*")),
    }
    try:
        return checks[item.kind]() or not path.exists()
    except ReproEnvError:
        return not path.exists()


def _is_spec_blob(directory: Path, blob: Path) -> bool:
    with contextlib.suppress(ReproEnvError):
        for _ in SpecBlobs(directory / "blobs").chunks(blob.name.removesuffix(".gz")):
            pass
        return True
    return False


def _remove(store: Store, item: StoreItem) -> None:
    removals: dict[str, Callable[[], None]] = {
        "blob": lambda: store.blobs.remove(item.name),
        "layer": lambda: store.layers.discard(item.name),
        "image": lambda: store.images.remove(item.name),
        "spec": lambda: store.spec_directories.remove(item.name),
    }
    removals[item.kind]()
