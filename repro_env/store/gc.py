"""Which things a store can do without, and how they go: out of sight at once, while nobody looks; then for good."""

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
from repro_env.store.usage import FOLDERS, MARKS, Inventory, Kind, Thing

DAY = 86400.0
_ELSEWHERE = 30 * DAY
"""Seconds for which is remembered that a file outside the store was hashed."""
_OURS = re.compile(r"(bytecode-|specs-)?[0-9a-f]{64}")


def choose(
    found: Inventory, named: Collection[str], *, now: float, keep_days: float | None, max_size: int | None
) -> tuple[Thing, ...]:
    """What goes, in this order: the least recently used first. What is in `named` (hex) never does.

    `keep_days`: whatever was not used for so long. `max_size`: as much more as it takes to get down to these bytes;
    facts are no part of that, since they are small and cost the most to find out again.
    """
    free = [one for one in found.things if one.name.partition(".")[0] not in named]
    order = sorted(free, key=lambda one: (one.used, one.kind, one.name))
    going: dict[tuple[Kind, str], Thing] = {(one.kind, one.name): one for one in order if one.kind == "damaged"}
    left = found.size - sum(one.size for one in going.values())
    bound = _Bound(found, named)
    for one in order:
        old = keep_days is not None and one.used < now - keep_days * DAY
        large = max_size is not None and left > max_size and one.kind != "fact"
        if old or large:
            for each in (one, *bound.to(one)):
                if (each.kind, each.name) not in going:
                    left -= each.size
                    going[each.kind, each.name] = each
    return tuple(going.values())


class _Bound:
    """What makes no sense without another thing: an image without a layer, bytecode and links without their image."""

    def __init__(self, found: Inventory, named: Collection[str]) -> None:
        self._of: dict[str, list[Thing]] = {}
        for one in found.things:
            if one.kind in ("image", "bytecode", "links") and one.name not in named:
                self._of.setdefault(one.name, []).append(one)
        self._images: dict[str, list[str]] = {}
        for image in found.images:
            for name in image.layers:
                self._images.setdefault(name, []).append(image.name)

    def to(self, one: Thing) -> Iterator[Thing]:
        images = self._images.get(one.name, []) if one.kind == "layer" else [one.name] if one.kind == "image" else []
        for name in images:
            yield from self._of.get(name, ())


def remove(store: Store, things: Iterable[Thing], *, since: float, patience: float) -> tuple[Thing, ...]:
    """Remove these, but for what was used after `since` or is named by a run now; returns what went.

    Then the images that are not complete go, and marks and locks of what is not there. Raises `StoreError` when other
    commands are at work for more than `patience` seconds. Killed at any time, it leaves nothing that looks whole and is not.
    """
    gone: list[Thing] = []
    # While alone, only renames: every other command that starts now has to wait. What is renamed is removed after it.
    with store.temp.folder() as folder, store.lease.alone(patience) as named:
        for number, one in enumerate(_ordered(things)):
            if one.name.partition(".")[0] not in named and _take(store, one, folder / str(number), since):
                gone.append(one)
        gone += _incomplete(store, named, folder)
        _tidy(store)
    return tuple(gone)


def _ordered(things: Iterable[Thing]) -> list[Thing]:
    """Images first: one that says it is there has all its layers."""
    return sorted(things, key=lambda one: one.kind != "image")


def _take(store: Store, one: Thing, target: Path, since: float) -> bool:
    try:
        if one.kind != "damaged" and usage.used(store, one.kind, one.name) > max(since, one.used):
            return False
        _path(store, one).rename(target)
        if one.kind == "layer":
            store.facts.forget(usage.SIZE, one.name)
    except FileNotFoundError:
        return False
    return True


def _path(store: Store, one: Thing) -> Path:
    return store.root / FOLDERS.get(one.kind, "facts") / one.name


def _incomplete(store: Store, named: Collection[str], folder: Path) -> Iterator[Thing]:
    there = {path.name for path in (store.root / "layers").iterdir()}
    whole: set[str] = set()
    for image in usage.held(store):
        if image.name in named or there.issuperset(image.layers):
            whole.add(image.name)
        else:
            (store.root / FOLDERS["image"] / image.name).rename(folder / f"image-{image.name}")
            yield Thing("image", image.name, 0, image.used)
    bound: tuple[Kind, ...] = ("bytecode", "links")
    for kind in bound:
        with contextlib.suppress(FileNotFoundError):
            for path in list((store.root / FOLDERS[kind]).iterdir()):
                name = path.name.removesuffix(".lock").lstrip(".").partition(".")[0]
                if name not in whole and name not in named:
                    path.rename(folder / f"{kind}-{path.name}")
                    if path.name == name:
                        yield Thing(kind, name, 0, 0.0)


def _tidy(store: Store) -> None:
    """Marks and locks of things that are not there, and half-written files of dead processes."""
    there = {prefix + path.name for kind, prefix in MARKS.items() for path in (store.root / FOLDERS[kind]).iterdir()}
    for path in list((store.root / "boot").iterdir()):
        # Others are of files elsewhere, which outputs wrote.
        ours = _OURS.fullmatch(path.name) is not None
        with contextlib.suppress(FileNotFoundError):
            if path.name not in there if ours else path.stat().st_mtime < time.time() - _ELSEWHERE:
                path.unlink()
    halves = [*(store.root / "facts").glob("*/.*.tmp"), *(store.root / "images").glob(".*.tmp")]
    locks = [path for path in (store.root / "locks").iterdir() if path.name not in there]
    for path in (*halves, *locks):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)
