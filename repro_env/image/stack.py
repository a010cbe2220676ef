"""Distributions -> the layers they share, and the one tree that all layers together make.

Wheel layers are pure: each path comes from one wheel alone. What the live environment holds beside or
instead of that is the overlay, computed as a difference (`lock.compose`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from repro_env.image import group, layout
from repro_env.image.entry import Entry, ordered
from repro_env.image.wheel import Installed

ROOT = layout.inside(layout.ENVIRONMENT)


class GroupLayer(msgspec.Struct, frozen=True):
    """One layer of distributions, before its bytes are read."""

    names: tuple[str, ...]
    """Normalised names, sorted."""
    entries: tuple[Entry, ...]
    """Relative to the image's root, so below `ROOT`; sorted, parents present."""
    owner: dict[str, str]
    """File path -> the distribution it comes from. Two in one group on one path: the later by name."""


def layers(installed: Mapping[str, Installed]) -> list[GroupLayer]:
    """The distribution layers of an image, lowest first. Keys are normalised names."""
    sized = [group.Sized(name, one.size) for name, one in installed.items()]
    return [layer(names, installed) for names in group.groups(sized)]


def layer(names: tuple[str, ...], installed: Mapping[str, Installed]) -> GroupLayer:
    """The layer that these distributions share; `names` sorted."""
    entries: dict[str, Entry] = {}
    owner: dict[str, str] = {}
    for name in names:
        for entry in installed[name].entries:
            placed = below(entry, ROOT)
            entries[placed.path] = placed
            owner[placed.path] = name
    return GroupLayer(names, tuple(ordered(entries.values())), owner)


def below(entry: Entry, root: str) -> Entry:
    """The entry, moved below a folder."""
    return Entry(f"{root}/{entry.path}", entry.kind, entry.executable, entry.size, entry.sha256, entry.target)


def composed(installed: Mapping[str, Installed]) -> dict[str, tuple[Entry, str]]:
    """What the stack of all distribution layers shows: path relative to the prefix -> (entry, distribution)."""
    seen: dict[str, tuple[Entry, str]] = {}
    for names in group.groups(group.Sized(name, one.size) for name, one in installed.items()):
        for name in names:
            for entry in installed[name].entries:
                seen[entry.path] = (entry, name)
    return seen
