"""Grouping rule 1: which distributions share a layer. The rule decides diff IDs, so it never changes.

A distribution of `ALONE` bytes or more has its own layer (at most `MOST_ALONE` of them: the largest first, then by name).
The other distributions are put into `BUCKETS` buckets by the first byte of sha256(name), so that adding or removing
one changes one bucket. Base, interpreter, overlay and marker have their own layers, so an image has at most
MOST_ALONE + BUCKETS + 4 = 60 layers. Container engines allow 127.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

ALONE = 32 << 20
MOST_ALONE = 48
BUCKETS = 8


class Sized(msgspec.Struct, frozen=True):
    name: str
    """Normalized name of a distribution."""
    size: int
    """Total size of its files in canonical form, in bytes."""


def groups(distributions: Iterable[Sized]) -> list[tuple[str, ...]]:
    """Return the names that share each layer, sorted: first the distributions with their own layer, then the buckets."""
    ordered = sorted(distributions, key=lambda distribution: (-distribution.size, distribution.name))
    alone = [distribution.name for distribution in ordered if distribution.size >= ALONE][:MOST_ALONE]
    bucketed = sorted({distribution.name for distribution in ordered} - set(alone))
    buckets: list[list[str]] = [[] for _ in range(BUCKETS)]
    for name in bucketed:
        buckets[hashlib.sha256(name.encode()).digest()[0] % BUCKETS].append(name)
    return [(name,) for name in sorted(alone)] + [tuple(bucket) for bucket in buckets if bucket]
