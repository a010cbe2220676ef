"""Grouping rule 1 decides image IDs: golden, independent of order, and far below the limit of engines."""

from __future__ import annotations

import random

from repro_env.oci.wheellayers import ALONE, BUCKETS, MOST_ALONE, groups


def many(count: int, size: int) -> dict[str, int]:
    return {f"dist-{number:03}": size for number in range(count)}


def test_large_distributions_have_their_own_layers_and_come_first() -> None:
    found = groups({"zlib": 10, "torch": ALONE, "numpy": ALONE + 5, "idna": 3})
    assert found[:2] == [("numpy",), ("torch",)]
    assert sorted(name for names in found[2:] for name in names) == ["idna", "zlib"]


def test_the_order_of_the_input_does_not_matter() -> None:
    sizes = many(100, 1000) | {f"big-{number}": ALONE + number % 3 for number in range(60)}
    shuffled = list(sizes.items())
    random.Random(7).shuffle(shuffled)
    assert groups(sizes) == groups(dict(shuffled))


def test_the_number_of_layers_is_limited() -> None:
    found = groups(many(500, ALONE))
    assert len(found) == MOST_ALONE + BUCKETS
    assert sorted(name for names in found for name in names) == list(many(500, ALONE))


def test_adding_a_distribution_changes_one_bucket() -> None:
    before, after = set(groups(many(80, 10))), set(groups({**many(80, 10), "newcomer": 10}))
    assert len(before - after) == 1
    assert len(after - before) == 1


def test_golden_groups() -> None:
    names = ("numpy", "scipy", "joblib", "threadpoolctl", "pip", "setuptools", "six", "attrs")
    assert groups(dict.fromkeys(names, 1)) == [
        ("attrs", "scipy"),
        ("threadpoolctl",),
        ("numpy",),
        ("six",),
        ("joblib", "pip", "setuptools"),
    ]
