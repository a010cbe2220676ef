"""Grouping rule 1: which distributions share a layer. It decides diff IDs, so it never changes.

A distribution of `ALONE` bytes or more has a layer of its own (at most `MOST_ALONE` of them, the largest
first, ties by name). The others fall into `BUCKETS` buckets by the first byte of sha256(name), so that
adding or removing one changes one bucket. Base, interpreter, overlay and marker come beside these, so an
image has at most MOST_ALONE + BUCKETS + 4 = 60 layers; container engines stop at 127.
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
    """Normalised name of a distribution."""
    size: int
    """Bytes of its files in canonical form."""


def groups(distributions: Iterable[Sized]) -> list[tuple[str, ...]]:
    """Names that share a layer, each group sorted: those alone first, by name, then the buckets."""
    found = sorted(distributions, key=lambda one: (-one.size, one.name))
    alone = [one.name for one in found if one.size >= ALONE][:MOST_ALONE]
    rest = sorted({one.name for one in found} - set(alone))
    buckets: list[list[str]] = [[] for _ in range(BUCKETS)]
    for name in rest:
        buckets[hashlib.sha256(name.encode()).digest()[0] % BUCKETS].append(name)
    return [(name,) for name in sorted(alone)] + [tuple(bucket) for bucket in buckets if bucket]
