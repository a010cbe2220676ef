"""Which output of a run is which of the run before: by path, then by path with dates, times, hosts and counters taken out."""

from __future__ import annotations

from collections.abc import Mapping

from repro_env.model.codec import Frozen
from repro_env.verify import masks


class Pair(Frozen, frozen=True):
    left: str
    right: str


class Ambiguous(Frozen, frozen=True):
    """Outputs of one masked name that could be paired in more than one way."""

    name: str
    left: tuple[str, ...]
    right: tuple[str, ...]


class Paired(Frozen, frozen=True):
    pairs: tuple[Pair, ...]
    """Sorted by the left path."""
    missing: tuple[str, ...]
    """Only left; sorted."""
    new: tuple[str, ...]
    """Only right; sorted."""
    ambiguous: tuple[Ambiguous, ...]


def pair(left: Mapping[str, str], right: Mapping[str, str]) -> Paired:
    """Both sides: path -> digest. Each path is in the answer exactly once.

    Of several that one masked name means, those with equal digests are pairs: whichever is taken, they are equal. One that
    is left on each side is a pair as well. More are ambiguous, since an order of names is no evidence.
    """
    pairs = [Pair(path, path) for path in left if path in right]
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for number, (side, other) in enumerate(((left, right), (right, left))):
        for path in sorted(side):
            if path not in other:
                groups.setdefault(masks.name(path), ([], []))[number].append(path)
    missing: list[str] = []
    new: list[str] = []
    ambiguous: list[Ambiguous] = []
    for name, (ones, others) in groups.items():
        for path in list(ones):
            equal = next((other for other in others if right[other] == left[path]), None)
            if equal is not None:
                pairs.append(Pair(path, equal))
                ones.remove(path)
                others.remove(equal)
        if len(ones) == len(others) == 1:
            pairs.append(Pair(ones[0], others[0]))
        elif ones and others:
            ambiguous.append(Ambiguous(name, tuple(ones), tuple(others)))
        else:
            missing += ones
            new += others
    return Paired(tuple(sorted(pairs, key=lambda one: one.left)), tuple(sorted(missing)), tuple(sorted(new)), tuple(ambiguous))
