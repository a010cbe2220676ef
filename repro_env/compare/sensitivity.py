"""Statistics of a metric over runs that differ only in their seed: mean, range and outliers. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from repro_env.schema.codec import Frozen

LEVEL = 0.95
"""The confidence level of the interval."""
FEW = 5
"""With fewer values, an interval says little and outliers cannot be detected."""
_FAR = 3.5
"""The modified z-score from which a value is an outlier (Iglewicz and Hoaglin 1993)."""
_EXPONENT = 500
"""Sums and squares of numbers below 2 to this power do not overflow."""


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
    """The standard deviation of the sample (n - 1)."""
    median: float
    least: float
    most: float
    low: float
    """The t-interval of the mean over all seeds, assuming that the values are normally distributed."""
    high: float
    outliers: tuple[int, ...]
    """The seeds of outliers. Empty if there are too few values."""
    few: bool
    """Whether there are fewer than `FEW` values."""

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
    # A loss may diverge up to the largest float. The values are scaled down, so that sums and squares do not overflow.
    shift = max(0, max(math.frexp(value.value)[1] for value in finite) - _EXPONENT)
    scaled = [Value(seed=value.seed, value=math.ldexp(value.value, -shift)) for value in finite]
    numbers = [value.value for value in scaled]
    mean, deviation = statistics.mean(numbers), statistics.stdev(numbers)
    half = quantile((1 + LEVEL) / 2, len(numbers) - 1) * deviation / math.sqrt(len(numbers))
    return Spread(
        values=finite,
        left_out=tuple(value for value in by_seed if not math.isfinite(value.value)),
        mean=_scale_up(mean, shift),
        deviation=_scale_up(deviation, shift),
        median=_scale_up(statistics.median(numbers), shift),
        least=min(value.value for value in finite),
        most=max(value.value for value in finite),
        low=_scale_up(mean - half, shift),
        high=_scale_up(mean + half, shift),
        outliers=_outliers(scaled),
        few=len(numbers) < FEW,
    )


def _scale_up(value: float, shift: int) -> float:
    """Multiply by a power of two. The result may be infinite."""
    return value * 2.0**shift


def _outliers(values: Sequence[Value]) -> tuple[int, ...]:
    """Find outliers by their distance from the median, relative to the median distance, which a few outliers do not affect."""
    if len(values) < FEW:
        return ()
    middle = statistics.median(value.value for value in values)
    scale = statistics.median(abs(value.value - middle) for value in values)
    if scale == 0:  # more than half of the values are equal: all others are outliers
        return tuple(value.seed for value in values if value.value != middle)
    return tuple(value.seed for value in values if 0.6745 * abs(value.value - middle) / scale > _FAR)


def quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t-distribution for a probability of at least 0.5 and below 1.

    For integer degrees of freedom, P(|T| <= t) is a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4) of the angle with the
    tangent t / sqrt(freedom). It grows with the angle, so bisection finds the angle.
    """
    target = 2 * probability - 1
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        middle = (low + high) / 2
        if _within(middle, freedom) < target:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return P(|T| <= sqrt(freedom) * tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if freedom % 2 else 1.0
    total = 0.0
    for first in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (first - 1) / first
    if freedom % 2:
        return 2 / math.pi * (angle + sine * total)
    return sine * total


def number(value: float) -> str:
    return f"{value:.6g}"


def sentences(spread: Spread) -> list[str]:
    """Describe the statistics."""
    count = len(spread.values)
    if spread.equal:
        lines = [f"all {count} seeds give {number(spread.mean)}"]
    else:
        lines = [
            f"mean {number(spread.mean)}, 95% interval {number(spread.low)} to {number(spread.high)} (t, {count} seeds)",
            (
                f"range {number(spread.least)} to {number(spread.most)}, median {number(spread.median)}, "
                f"standard deviation {number(spread.deviation)}"
            ),
        ]
    if spread.outliers:
        seeds = ", ".join(str(seed) for seed in spread.outliers)
        lines.append(f"outlier{'s' * (len(spread.outliers) > 1)}: seed{'s' * (len(spread.outliers) > 1)} {seeds}")
    if spread.left_out:
        seeds = ", ".join(f"seed {value.seed} ({value.value})" for value in spread.left_out)
        lines.append(f"not finite, and not part of these statistics: {seeds}")
    if spread.few:
        lines.append(
            f"only {count} seeds: too few for a reliable interval or for outliers; use at least {FEW}, better 10 or more"
        )
    return lines
