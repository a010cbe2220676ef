"""Where packages may come from, besides what pip is configured with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Index(msgspec.Struct, frozen=True):
    """An index that speaks the simple API."""

    url: str
    """May hold credentials: only for requests."""
    names: frozenset[str] | None = None
    """Normalised names of the distributions that it is asked for; None for all."""


class LockedFile(msgspec.Struct, frozen=True):
    """A wheel that a lock file names."""

    url: str
    sha256: str
    """64 hexadecimal digits."""
    index: str
    """The index that the lock file names for it, or empty."""


class PackageSources(msgspec.Struct, frozen=True):
    """Indexes, find-links and locked files. All of it names candidates only: a wheel is proven before it counts."""

    indexes: tuple[Index, ...] = ()
    find_links: tuple[str, ...] = ()
    """URLs and absolute paths; may hold credentials."""
    replaces_default: bool = False
    """One of the indexes takes the place of pip's built-in default index."""
    files: Mapping[str, tuple[LockedFile, ...]] = {}
    """By normalised name of the distribution."""
    problems: tuple[str, ...] = ()
    """What could not be read or used: one sentence each."""


NONE = PackageSources()
