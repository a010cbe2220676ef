"""What no package owns: a tree above the base, with a loader's cache of its own by which its libraries are found.

`LD_LIBRARY_PATH` is not set in a run: what it leads to here, that cache lists before everything else. Where the two cannot
agree (the loader looks at a RUNPATH after the variable and before the cache), the libraries are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base import ldconfig
from repro_env.base.ldcache import Library
from repro_env.base.needs import Needs
from repro_env.base.tree import Hashes, LiveTree, Tree, real, within
from repro_env.capture.frameworks import is_driver
from repro_env.image.entry import Entry, ordered
from repro_env.model import redact
from repro_env.model.environment import Carried

CACHE = "/etc/ld.so.cache"
_WHY = "belongs to no package of the system"


class Found(msgspec.Struct, frozen=True):
    """Lines of the cache that LD_LIBRARY_PATH stands for, and what is not held of it."""

    lines: tuple[Library, ...]
    unknown: tuple[str, ...]


def listed(trees: Sequence[LiveTree], needed: Needs, libpython: str | None) -> tuple[Library, ...]:
    """What ldconfig would list of these trees together."""
    paths = {path for tree in trees for path in tree.paths()}
    links = {path for tree in trees for path in tree.links}
    return tuple(ldconfig.lines(paths, links, needed.loader, libpython=libpython, mapped=needed.mapped & paths))


def by_path(tree: LiveTree, beside: LiveTree, needed: Needs) -> Found:
    """What the folders of LD_LIBRARY_PATH give: the libraries in `tree`, in `beside` (their names there are added), and all in
    folders that travel in other layers, which a framework may open by name at any time."""
    usual = {real(folder) for folder in ldconfig.search()}
    lines: list[Library] = []
    unknown: list[str] = []
    for folder in needed.path.folders:
        place = real(folder)
        if place in usual or not Path(place).is_dir():
            continue
        # A driver's libraries are those of the machine that a run is on, wherever it has them.
        names = [one for one in ldconfig.named(folder, needed.loader) if not is_driver(one.name)]
        if within(folder, needed.held) or within(place, needed.held):
            lines += names
            continue
        left = set()
        for one in names:
            at = real(one.path)
            if at in tree or at in beside:
                lines.append(one)
                beside.follow(one.path)
            else:
                left.add(at)
        if left:
            unknown.append(
                f"LD_LIBRARY_PATH names {folder}: {len(left)} of its libraries, which nothing captured loads, are not held; "
                f"a program that opens one of them by name does not find it (--with {folder} holds them all)"
            )
    return Found(tuple(lines), tuple(unknown))


def merged(first: Sequence[Library], others: Sequence[Library]) -> tuple[Library, ...]:
    """`first` before `others`, without variants that the loader would prefer to them: it takes a fast library before a plain one."""
    names = {(one.name, one.flags) for one in first}
    return (*first, *(one for one in others if not (one.hwcaps and (one.name, one.flags) in names)))


def above(beside: LiveTree, base: Sequence[Entry], lower: bytes, upper: bytes, hashes: Hashes) -> Tree | None:
    """The tree above a base of these entries; None where it would hold nothing. `lower`, `upper`: the caches."""
    if lower != upper:
        beside.make(CACHE, upper)
    entries, contents = beside.finish(hashes)
    there: Mapping[str, Entry] = {entry.path: entry for entry in base}
    own = [entry for entry in entries if there.get(entry.path) != entry]
    return Tree(entries=tuple(ordered(own)), contents=contents) if own else None


def carried(paths: Sequence[str], folders: Sequence[str], tree: Tree | None) -> tuple[Carried, ...]:
    """In words, sorted: each folder that was asked for and each other file, with its size in bytes."""
    files = {f"/{entry.path}": entry.size for entry in (tree.entries if tree else ()) if entry.kind == "file"}
    return tuple(sorted(_carried(paths, folders, files), key=lambda one: one.name))


def _carried(paths: Sequence[str], folders: Sequence[str], files: Mapping[str, int]) -> Iterator[Carried]:
    for folder in folders:
        size = sum(size for path, size in files.items() if within(path, (folder,)))
        yield Carried(name=redact.line(folder), version="", why=_WHY, size=size)
    for path in paths:
        if path in files and not within(path, folders):
            yield Carried(name=redact.line(path), version="", why=_WHY, size=files[path])
