"""Statistics of a metric over runs that differ only in their seed: mean, range and standard deviation. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from repro_env.schema.codec import Frozen

FEW = 5
"""Fewer values do not show the range."""


class Value(Frozen, frozen=True, kw_only=True):
    seed: int
    value: float


class Spread(Frozen, frozen=True, kw_only=True):
    values: tuple[Value, ...]
    """The finite values, sorted by seed; at least two."""
    left_out: tuple[Value, ...]
    """The values that are infinite or NaN. They are not part of the statistics."""
    mean: float
    deviation: float
    """The standard deviation of the sample (n - 1); infinite if it is larger than the largest float."""
    least: float
    most: float

    @property
    def equal(self) -> bool:
        """Whether all values are equal and finite."""
        return self.least == self.most and not self.left_out


def spread(values: Sequence[Value]) -> Spread | None:
    """Compute the statistics; None if there are fewer than two finite values."""
    by_seed = sorted(values, key=lambda value: value.seed)
    finite = tuple(value for value in by_seed if math.isfinite(value.value))
    if len(finite) < 2:
        return None
    numbers = [value.value for value in finite]
    try:
        deviation = statistics.stdev(numbers)
    except OverflowError:  # a loss may diverge up to the largest float
        deviation = math.inf
    return Spread(
        values=finite,
        left_out=tuple(value for value in by_seed if not math.isfinite(value.value)),
        mean=statistics.mean(numbers),
        deviation=deviation,
        least=min(numbers),
        most=max(numbers),
    )
