"""Distributions -> the layers that they share, and the tree that these layers make together.

In a wheel layer, the content of each path comes from one wheel. The overlay holds what else the live environment
contains; it is computed as a difference (`environment.wheels.composition`).

Grouping rule 1 decides which distributions share a layer. It decides diff IDs, so it never changes: a distribution of
`ALONE` bytes or more has its own layer (at most `MOST_ALONE` of them: the largest first, then by name). The others are put
into `BUCKETS` buckets by the first byte of sha256(name), so that adding or removing one changes one bucket. Base,
interpreter, overlay and marker have their own layers, so an image has at most MOST_ALONE + BUCKETS + 4 = 60 layers.
Container engines allow 127.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.wheel import Installed

ALONE = 32 << 20
MOST_ALONE = 48
BUCKETS = 8


class GroupLayer(msgspec.Struct, frozen=True):
    """One layer of distributions, without the content of its files."""

    names: tuple[str, ...]
    """Keys of the distributions (`Wheel.key`), sorted."""
    entries: tuple[Entry, ...]
    """Relative to the image's root, sorted, with all parents."""
    owner: dict[str, tuple[str, str]]
    """File path -> (key of its distribution, path relative to the prefix). Of two files at one path, the later one."""


def groups(sizes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Return the names that share each layer, sorted: first the distributions with their own layer, then the buckets.

    `sizes`: total size of the files in canonical form in bytes, by name.
    """
    ordered = sorted(sizes, key=lambda name: (-sizes[name], name))
    alone = [name for name in ordered if sizes[name] >= ALONE][:MOST_ALONE]
    buckets: list[list[str]] = [[] for _ in range(BUCKETS)]
    for name in sorted(sizes.keys() - set(alone)):
        buckets[hashlib.sha256(name.encode()).digest()[0] % BUCKETS].append(name)
    return [(name,) for name in sorted(alone)] + [tuple(bucket) for bucket in buckets if bucket]


def layers(installed: Mapping[str, Installed]) -> list[GroupLayer]:
    """Return the layers of the distributions of an image, lowest first. `installed`: by `Wheel.key`."""
    return [layer(names, installed) for names in groups({name: item.size for name, item in installed.items()})]


def layer(names: tuple[str, ...], installed: Mapping[str, Installed]) -> GroupLayer:
    """Return the layer that these distributions share. `names` are sorted."""
    entries: dict[str, Entry] = {}
    owner: dict[str, tuple[str, str]] = {}
    for name in names:
        for entry in installed[name].entries:
            placed = move_below(entry, installed[name].root)
            entries[placed.path] = placed
            owner[placed.path] = (name, entry.path)
    return GroupLayer(names, tuple(sort_with_parents(entries.values())), owner)


def move_below(entry: Entry, root: str) -> Entry:
    """Return the entry, moved below a directory."""
    return Entry(f"{root}/{entry.path}", entry.kind, entry.executable, entry.size, entry.sha256, entry.target)


def compose(stacks: Sequence[Mapping[str, Installed]], root: str) -> dict[str, tuple[Entry, str]]:
    """Return what stacks of layers, lowest first, show below one prefix: relative path -> (entry, key of its distribution)."""
    shown: dict[str, tuple[Entry, str]] = {}
    for installed in stacks:
        for names in groups({name: item.size for name, item in installed.items()}):
            for name in names:
                for entry in installed[name].entries if installed[name].root == root else ():
                    shown[entry.path] = (entry, name)
    return shown
