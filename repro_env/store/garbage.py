"""Garbage collection: choose what can be removed, rename it out of the way while no other command runs, then delete it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from repro_env.store import usage
from repro_env.store.store import Store
from repro_env.store.usage import DIRECTORIES, MARKS, Inventory, Kind, StoreItem

DAY = 86400.0
_ELSEWHERE = 30 * DAY
"""Seconds after which the mark of a hashed file outside of the store is removed."""
_OURS = re.compile(r"(specs-)?[0-9a-f]{64}")


def choose(
    inventory: Inventory, in_use: Collection[str], *, now: float, keep_days: float | None, max_size: int | None
) -> tuple[StoreItem, ...]:
    """Return what to remove, the least recently used first. What is in `in_use` (hex names) is never removed.

    `keep_days`: remove everything that was not used for so many days. `max_size`: remove more until the store has at most
    so many bytes; facts are kept, because they are small and take the longest to compute again.
    """
    removable = [item for item in inventory.things if item.name.partition(".")[0] not in in_use]
    order = sorted(removable, key=lambda item: (item.used, item.kind, item.name))
    chosen: dict[tuple[Kind, str], StoreItem] = {(item.kind, item.name): item for item in order if item.kind == "damaged"}
    size = inventory.size - sum(item.size for item in chosen.values())
    dependents = _Dependents(inventory, in_use)
    for item in order:
        is_old = keep_days is not None and item.used < now - keep_days * DAY
        is_too_large = max_size is not None and size > max_size and item.kind != "fact"
        if is_old or is_too_large:
            for dependent in (item, *dependents.of(item)):
                if (dependent.kind, dependent.name) not in chosen:
                    size -= dependent.size
                    chosen[dependent.kind, dependent.name] = dependent
    return tuple(chosen.values())


class _Dependents:
    """Items that are useless without another one: an image without a layer, links without their image."""

    def __init__(self, inventory: Inventory, in_use: Collection[str]) -> None:
        self._by_image: dict[str, list[StoreItem]] = {}
        for item in inventory.things:
            if item.kind in ("image", "links") and item.name not in in_use:
                self._by_image.setdefault(item.name, []).append(item)
        self._images: dict[str, list[str]] = {}
        for image in inventory.images:
            for name in image.layers:
                self._images.setdefault(name, []).append(image.name)

    def of(self, item: StoreItem) -> Iterator[StoreItem]:
        images = self._images.get(item.name, []) if item.kind == "layer" else [item.name] if item.kind == "image" else []
        for name in images:
            yield from self._by_image.get(name, ())


def remove(store: Store, things: Iterable[StoreItem], *, since: float, patience: float) -> tuple[StoreItem, ...]:
    """Remove items, except those that were used after `since` or that a run uses now. Returns what was removed.

    Then remove incomplete images, and marks and locks of missing items. If it is killed, no incomplete item looks complete.
    Raises `StoreError` if other commands are running for more than `patience` seconds.
    """
    removed: list[StoreItem] = []
    # While the lock is held, other commands wait. So items are only renamed here, and deleted when the block ends.
    with store.temp.directory() as directory, store.lease.exclusive(patience) as in_use:
        for number, item in enumerate(_images_first(things)):
            if item.name.partition(".")[0] not in in_use and _hide(store, item, directory / str(number), since):
                removed.append(item)
        removed += _remove_incomplete_images(store, in_use, directory)
        _tidy(store)
    return tuple(removed)


def _images_first(things: Iterable[StoreItem]) -> list[StoreItem]:
    """Sort images first, so that an image is never there without its layers."""
    return sorted(things, key=lambda item: item.kind != "image")


def _hide(store: Store, item: StoreItem, target: Path, since: float) -> bool:
    try:
        if item.kind != "damaged" and usage.last_used(store, item.kind, item.name) > max(since, item.used):
            return False
        _path(store, item).rename(target)
        if item.kind == "layer":
            store.facts.forget(usage.SIZE, item.name)
    except FileNotFoundError:
        return False
    return True


def _path(store: Store, item: StoreItem) -> Path:
    return store.root / DIRECTORIES.get(item.kind, "facts") / item.name


def _remove_incomplete_images(store: Store, in_use: Collection[str], directory: Path) -> Iterator[StoreItem]:
    unpacked = {path.name for path in (store.root / "layers").iterdir()}
    complete: set[str] = set()
    for image in usage.stored_images(store):
        if image.name in in_use or unpacked.issuperset(image.layers):
            complete.add(image.name)
        else:
            (store.root / DIRECTORIES["image"] / image.name).rename(directory / f"image-{image.name}")
            yield StoreItem("image", image.name, 0, image.used)
    with contextlib.suppress(FileNotFoundError):
        for path in list((store.root / DIRECTORIES["links"]).iterdir()):
            name = path.name.removesuffix(".lock").lstrip(".").partition(".")[0]
            if name not in complete and name not in in_use:
                path.rename(directory / f"links-{path.name}")
                if path.name == name:
                    yield StoreItem("links", name, 0, 0.0)


def _tidy(store: Store) -> None:
    """Remove marks and locks of missing items, and incomplete files of dead processes."""
    marked = {prefix + path.name for kind, prefix in MARKS.items() for path in (store.root / DIRECTORIES[kind]).iterdir()}
    for path in list((store.root / "boot").iterdir()):
        # Other marks belong to files outside of the store, which outputs wrote.
        is_store_mark = _OURS.fullmatch(path.name) is not None
        with contextlib.suppress(FileNotFoundError):
            if path.name not in marked if is_store_mark else path.stat().st_mtime < time.time() - _ELSEWHERE:
                path.unlink()
    incomplete = [*(store.root / "facts").glob("*/.*.tmp"), *(store.root / "images").glob(".*.tmp")]
    locks = [path for path in (store.root / "locks").iterdir() if path.name not in marked]
    for path in (*incomplete, *locks):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
