"""Which output of a run is which of the run before: by path, then by path without what was the runs' own in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from repro_env.model.codec import Frozen

PairNames = Callable[[Sequence[str], Sequence[str]], Sequence[tuple[str, str]]]
"""Names that only the left side has, and only the right: those that are one name (`judge.Judge.pair_names`)."""


class Pair(Frozen, frozen=True):
    left: str
    right: str


class Paired(Frozen, frozen=True):
    pairs: tuple[Pair, ...]
    """Sorted by the left path."""
    missing: tuple[str, ...]
    """Only left; sorted."""
    new: tuple[str, ...]
    """Only right; sorted."""


def by_path(_: Sequence[str], __: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Names that differ are two names."""
    return ()


def pair(left: Iterable[str], right: Iterable[str], pair_names: PairNames = by_path) -> Paired:
    """Each path is in the answer exactly once."""
    ones, others = set(left), set(right)
    pairs = [Pair(path, path) for path in ones & others]
    pairs += [Pair(*names) for names in pair_names(sorted(ones - others), sorted(others - ones))]
    missing = ones.difference(one.left for one in pairs)
    new = others.difference(one.right for one in pairs)
    return Paired(tuple(sorted(pairs, key=lambda one: one.left)), tuple(sorted(missing)), tuple(sorted(new)))
