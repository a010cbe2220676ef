"""The stories of `repro-env store`: what is in it, what it can do without, whether all of it is whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from repro_env.catalog.index import Index
from repro_env.model.errors import ReproEnvError
from repro_env.model.talk import Tell
from repro_env.store import gc
from repro_env.store.carried import Carried
from repro_env.store.seen import AWAY
from repro_env.store.store import Store
from repro_env.store.usage import FOLDERS, Thing, inventory

PATIENCE = 60.0
"""Seconds that a removal waits for commands that are at work."""
_CHECKED = frozenset({"blob", "layer", "image", "bytecode", "spec"})
"""Links are the layers' own files. A fact says itself whether it is whole, each time it is asked."""


class ImageUse(msgspec.Struct, frozen=True):
    """What one image takes."""

    image_id: str
    spec: str
    used: float
    """When it was used last, in seconds since 1970."""
    layers: int
    own: int
    """Bytes that go when it does: layers of no other image, its bytecode and links."""
    shared: int
    """Bytes of layers that other images have too."""
    running: bool


class Usage(msgspec.Struct, frozen=True):
    root: str
    kinds: dict[str, tuple[int, int]]
    """Kind -> how many, bytes on disk."""
    other: int
    images: tuple[ImageUse, ...]
    """The latest used first."""
    unbound: int
    """Bytes of layers of no image: source code of runs, and what is left of builds that were stopped."""

    @property
    def size(self) -> int:
        return sum(size for _, size in self.kinds.values()) + self.other


class Collected(msgspec.Struct, frozen=True):
    things: tuple[Thing, ...]
    before: int
    """Bytes of the store."""
    dry_run: bool

    @property
    def freed(self) -> int:
        return sum(one.size for one in self.things)


class Verified(msgspec.Struct, frozen=True):
    checked: int
    damaged: tuple[Thing, ...]
    repaired: bool


def usage(store: Store) -> Usage:
    found = inventory(store)
    named = store.lease.named()
    kinds: dict[str, tuple[int, int]] = {}
    for one in found.things:
        count, size = kinds.get(one.kind, (0, 0))
        kinds[one.kind] = (count + 1, size + one.size)
    layers = {one.name: one.size for one in found.things if one.kind == "layer"}
    holders: dict[str, int] = {}
    for image in found.images:
        for name in set(image.layers):
            holders[name] = holders.get(name, 0) + 1
    bound: dict[str, int] = {}
    for one in found.things:
        if one.kind in ("image", "bytecode", "links"):
            bound[one.name] = bound.get(one.name, 0) + one.size
    images = [
        ImageUse(
            image_id=f"sha256:{image.name}",
            spec=image.spec,
            used=image.used,
            layers=len(image.layers),
            own=bound.get(image.name, 0) + sum(layers.get(name, 0) for name in set(image.layers) if holders[name] == 1),
            shared=sum(layers.get(name, 0) for name in set(image.layers) if holders[name] > 1),
            running=image.name in named,
        )
        for image in found.images
    ]
    return Usage(
        root=str(store.root),
        kinds=kinds,
        other=found.other,
        images=tuple(sorted(images, key=lambda one: (-one.used, one.image_id))),
        unbound=sum(size for name, size in layers.items() if name not in holders),
    )


def collect(
    store: Store, *, keep_days: float | None, max_size: int | None, dry_run: bool, tell: Tell, patience: float = PATIENCE
) -> Collected:
    """Remove what was not used for long, and as much more as `max_size` bytes ask for. Raises `StoreError`.

    The source of a recorded run stays as long as its record: nothing else may have it.
    """
    since = time.time()
    found = inventory(store)
    held = store.lease.named() | _sources(store, tell)
    going = gc.choose(found, held, now=since, keep_days=keep_days, max_size=max_size)
    if dry_run:
        return Collected(going, found.size, dry_run=True)
    if going:
        tell.detail(f"removing {len(going):,} of {len(found.things):,} things")
    with tell.progress(0, "removing"):
        gone = gc.remove(store, going, since=since, patience=patience)
    return Collected(gone, found.size, dry_run=False)


def _sources(store: Store, tell: Tell) -> frozenset[str]:
    """The trees (hex) that recorded runs ran. What cannot be read, and so holds nothing, is told.

    A folder of runs that is not there may be on a disk that is not: what is remembered of it counts for a while.
    """
    index = Index(store.runs)
    held: set[str] = set()
    missing: list[str] = []
    for folder in store.seen.folders():
        there = folder.is_dir()
        if not there and store.seen.last(folder) < time.time() - AWAY:
            missing.append(str(folder))
            continue
        try:
            listing = index.listing(folder) if there else index.remembered(folder)
        except (OSError, ReproEnvError) as error:
            tell.warn(f"note: the source of its runs is not held: {error}")
            continue
        held.update(digest.removeprefix("sha256:") for run in listing.runs for digest in run.source_trees)
        for each in listing.unreadable:
            tell.warn(f"note: the source of this run is not held: {each.why}")
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        tell.warn(f"note: {missing[0]}{more} held runs long ago and is not there now: the source of its runs is not held")
    return frozenset(held)


def verify(store: Store, *, repair: bool, tell: Tell) -> Verified:
    """Read every byte. What is not what its name says is damaged; `repair` puts it out of the way, so that it is made again."""
    found = inventory(store)
    todo = [one for one in found.things if one.kind in _CHECKED]
    damaged: list[Thing] = []
    with tell.progress(sum(one.size for one in todo), "reading") as advance, ThreadPoolExecutor() as pool:
        for one, whole in zip(todo, pool.map(lambda one: _is_whole(store, one), todo), strict=True):
            advance(one.size)
            if not whole:
                damaged.append(one)
    if repair:
        for one in damaged:
            _put_away(store, one)
    return Verified(len(todo), tuple(damaged), repaired=repair)


def _is_whole(store: Store, one: Thing) -> bool:
    """True too for what somebody removed meanwhile."""
    path = store.root / FOLDERS[one.kind] / one.name
    checks: dict[str, Callable[[], bool]] = {
        "blob": lambda: store.blobs.verify(one.name),
        "layer": lambda: store.layers.verify(one.name),
        "image": lambda: store.images.verify(one.name),
        "bytecode": lambda: store.bytecode.verify(one.name),
        "spec": lambda: all(_is_spec_blob(path, blob) for blob in (path / "blobs").glob("[0-9a-f]*")),
    }
    try:
        return checks[one.kind]() or not path.exists()
    except ReproEnvError:
        return not path.exists()


def _is_spec_blob(folder: Path, blob: Path) -> bool:
    with contextlib.suppress(ReproEnvError):
        for _ in Carried(folder / "blobs").chunks(blob.name.removesuffix(".gz")):
            pass
        return True
    return False


def _put_away(store: Store, one: Thing) -> None:
    removals: dict[str, Callable[[], None]] = {
        "blob": lambda: store.blobs.remove(one.name),
        "layer": lambda: store.layers.discard(one.name),
        "image": lambda: store.images.remove(one.name),
        "bytecode": lambda: store.bytecode.remove(one.name),
        "spec": lambda: store.folders.remove(one.name),
    }
    removals[one.kind]()
