"""Distributions -> the layers they share, and the one tree that all layers together make.

Wheel layers are pure: each path comes from one wheel alone. What the live environment holds beside or
instead of that is the overlay, computed as a difference (`lock.compose`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from repro_env.image import group
from repro_env.image.entry import Entry, ordered
from repro_env.image.wheel import Installed


class GroupLayer(msgspec.Struct, frozen=True):
    """One layer of distributions, before its bytes are read."""

    names: tuple[str, ...]
    """Keys of the distributions (`Wheel.key`), sorted."""
    entries: tuple[Entry, ...]
    """Relative to the image's root; sorted, parents present."""
    owner: dict[str, tuple[str, str]]
    """File path -> (the distribution it comes from, its path relative to that one's prefix). Two on one path: the later."""


def layers(installed: Mapping[str, Installed]) -> list[GroupLayer]:
    """The distribution layers of an image, lowest first, by `Wheel.key`."""
    sized = [group.Sized(name, one.size) for name, one in installed.items()]
    return [layer(names, installed) for names in group.groups(sized)]


def layer(names: tuple[str, ...], installed: Mapping[str, Installed]) -> GroupLayer:
    """The layer that these distributions share; `names` sorted."""
    entries: dict[str, Entry] = {}
    owner: dict[str, tuple[str, str]] = {}
    for name in names:
        for entry in installed[name].entries:
            placed = below(entry, installed[name].root)
            entries[placed.path] = placed
            owner[placed.path] = (name, entry.path)
    return GroupLayer(names, tuple(ordered(entries.values())), owner)


def below(entry: Entry, root: str) -> Entry:
    """The entry, moved below a folder."""
    return Entry(f"{root}/{entry.path}", entry.kind, entry.executable, entry.size, entry.sha256, entry.target)


def composed(stacks: Sequence[Mapping[str, Installed]], root: str) -> dict[str, tuple[Entry, str]]:
    """What stacks of layers, the lowest first, show below one prefix: path relative to it -> (entry, key of its owner)."""
    seen: dict[str, tuple[Entry, str]] = {}
    for installed in stacks:
        for names in group.groups(group.Sized(name, one.size) for name, one in installed.items()):
            for name in names:
                for entry in installed[name].entries if installed[name].root == root else ():
                    seen[entry.path] = (entry, name)
    return seen
