"""Grouping rule 1 decides image IDs: pinned, independent of order, never near the engines' limit."""

from __future__ import annotations

import random

from repro_env.image.group import ALONE, BUCKETS, MOST_ALONE, Sized, groups


def many(count: int, size: int) -> list[Sized]:
    return [Sized(f"dist-{number:03}", size) for number in range(count)]


def test_large_ones_are_alone_and_come_first() -> None:
    found = groups([Sized("zlib", 10), Sized("torch", ALONE), Sized("numpy", ALONE + 5), Sized("idna", 3)])
    assert found[:2] == [("numpy",), ("torch",)]
    assert sorted(name for names in found[2:] for name in names) == ["idna", "zlib"]


def test_order_of_input_does_not_matter() -> None:
    items = many(100, 1000) + [Sized(f"big-{number}", ALONE + number % 3) for number in range(60)]
    shuffled = items.copy()
    random.Random(7).shuffle(shuffled)
    assert groups(items) == groups(shuffled)


def test_never_more_layers_than_promised() -> None:
    found = groups(many(500, ALONE))
    assert len(found) == MOST_ALONE + BUCKETS
    assert sorted(name for names in found for name in names) == [one.name for one in many(500, ALONE)]


def test_one_more_distribution_changes_one_bucket() -> None:
    before, after = set(groups(many(80, 10))), set(groups([*many(80, 10), Sized("newcomer", 10)]))
    assert len(before - after) == 1
    assert len(after - before) == 1


def test_golden() -> None:
    names = ("numpy", "scipy", "joblib", "threadpoolctl", "pip", "setuptools", "six", "attrs")
    assert groups([Sized(name, 1) for name in names]) == [
        ("attrs", "scipy"),
        ("threadpoolctl",),
        ("numpy",),
        ("six",),
        ("joblib", "pip", "setuptools"),
    ]
