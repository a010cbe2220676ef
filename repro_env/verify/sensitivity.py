"""One number of several runs that differ in nothing but the seed: where it lies, how far it moves, and who stands out. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from repro_env.model.codec import Frozen

LEVEL = 0.95
"""Of the interval."""
FEW = 5
"""Below, an interval says little and outliers cannot be told."""
_FAR = 3.5
"""Modified z-score from which a value stands out (Iglewicz and Hoaglin 1993)."""
_ROWS = 40
"""Seeds that a plot shows one by one."""
_BINS = 15
_AWAY = "  far"
_WIDEST, _NARROWEST = 48, 12
"""Columns of a plot beside its labels."""
_ROOM = 900
"""Numbers below 2 to this power have room for sums of them all, and the standard deviation too."""


class Value(Frozen, frozen=True, kw_only=True):
    seed: int
    value: float


class Spread(Frozen, frozen=True, kw_only=True):
    values: tuple[Value, ...]
    """Finite ones, sorted by seed; at least two."""
    left_out: tuple[Value, ...]
    """nan and infinite: no statistics has a place for them, and they are results all the same."""
    mean: float
    deviation: float
    """Standard deviation of the sample (n - 1)."""
    median: float
    least: float
    most: float
    low: float
    """The t-interval of the mean: where it would lie over all seeds, if values of seeds are normally distributed."""
    high: float
    outliers: tuple[int, ...]
    """Seeds; empty also where there are too few values to tell."""
    few: bool
    """Fewer than 5 seeds."""

    @property
    def equal(self) -> bool:
        """The seed changed nothing in any of them."""
        return self.least == self.most and not self.left_out


def spread(values: Sequence[Value]) -> Spread | None:
    """None with fewer than two finite values: one number has no range."""
    ordered = sorted(values, key=lambda one: one.seed)
    finite = tuple(one for one in ordered if math.isfinite(one.value))
    if len(finite) < 2:
        return None
    # A loss may diverge up to the largest float: sums and squares of such numbers are taken of smaller ones.
    shift = max(0, max(math.frexp(one.value)[1] for one in finite) - _ROOM)
    small = [Value(seed=one.seed, value=math.ldexp(one.value, -shift)) for one in finite]
    numbers = [one.value for one in small]
    mean, deviation = statistics.mean(numbers), statistics.stdev(numbers)
    half = quantile((1 + LEVEL) / 2, len(numbers) - 1) * deviation / math.sqrt(len(numbers))
    return Spread(
        values=finite,
        left_out=tuple(one for one in ordered if not math.isfinite(one.value)),
        mean=_large(mean, shift),
        deviation=_large(deviation, shift),
        median=_large(statistics.median(numbers), shift),
        least=min(one.value for one in finite),
        most=max(one.value for one in finite),
        low=_large(mean - half, shift),
        high=_large(mean + half, shift),
        outliers=_outliers(small),
        few=len(numbers) < FEW,
    )


def _large(value: float, shift: int) -> float:
    """Times a power of two; infinite where no float is so large."""
    return value * 2.0**shift


def _outliers(values: Sequence[Value]) -> tuple[int, ...]:
    """By distance from the median in units of the median distance: a few far values do not move either."""
    if len(values) < FEW:
        return ()
    middle = statistics.median(one.value for one in values)
    scale = statistics.median(abs(one.value - middle) for one in values)
    if scale == 0:  # more than half are equal: then any other one stands out
        return tuple(one.seed for one in values if one.value != middle)
    return tuple(one.seed for one in values if 0.6745 * abs(one.value - middle) / scale > _FAR)


def quantile(probability: float, freedom: int) -> float:
    """Of Student's t-distribution, for a probability of at least 0.5 and below 1.

    P(|T| <= t) has a finite sum for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4), in the angle
    whose tangent is t / sqrt(freedom); it grows with the angle, so halving finds it.
    """
    wanted = 2 * probability - 1
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        middle = (low + high) / 2
        if _within(middle, freedom) < wanted:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) * tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if freedom % 2 else 1.0
    total = 0.0
    for first in range(2 + freedom % 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (first - 1) / first
    if freedom % 2:
        return 2 / math.pi * (angle + sine * total)
    return sine * total


# --- in words and lines


def number(value: float) -> str:
    return f"{value:.6g}"


def sentences(found: Spread) -> list[str]:
    """What the numbers say, and what they do not."""
    count = len(found.values)
    if found.equal:
        said = [f"all {count} seeds give {number(found.mean)}"]
    else:
        said = [
            f"mean {number(found.mean)}, 95% interval {number(found.low)} to {number(found.high)} (t, {count} seeds)",
            (
                f"range {number(found.least)} to {number(found.most)}, median {number(found.median)}, "
                f"standard deviation {number(found.deviation)}"
            ),
        ]
    if found.outliers:
        seeds = ", ".join(str(seed) for seed in found.outliers)
        said.append(f"far from the others: seed{'s' * (len(found.outliers) > 1)} {seeds}")
    if found.left_out:
        said.append("no number, and in none of these: " + ", ".join(f"seed {one.seed} ({one.value})" for one in found.left_out))
    if found.few:
        said.append(
            f"only {count} seeds: fewer than {FEW} say little, neither how far other seeds go nor which stand out; "
            "10 or more are better"
        )
    return said


def plot(found: Spread, columns: int | None = None) -> list[str]:
    """A row for each seed, or bars where there are many; below them the mean `|` and its interval `[=]`. Empty where all are equal.

    `columns`: of the terminal, None for as wide as is good to read.
    """
    width = _WIDEST
    if columns is not None:
        names, numbers = _labels(found)
        width = max(_NARROWEST, min(width, columns - names - numbers - len(f"    {_AWAY}")))
    low, high = min(found.least, found.low), max(found.most, found.high)
    if found.least == found.most or not math.isfinite(high - low):
        return []

    def place(value: float) -> int:
        return round((value - low) / (high - low) * (width - 1))

    if len(found.values) <= _ROWS:
        labels = [(f"seed {one.seed}", number(one.value)) for one in found.values]
        marks = ["." * place(one.value) + "o" + "." * (width - 1 - place(one.value)) for one in found.values]
        marks = [mark + (_AWAY if one.seed in found.outliers else "") for mark, one in zip(marks, found.values, strict=True)]
    else:
        labels, marks = _bars(found, width)
    line = [" "] * width
    for at in range(place(found.low), place(found.high) + 1):
        line[at] = "="
    line[place(found.low)], line[place(found.high)] = "[", "]"
    line[place(found.mean)] = "|"
    labels.append(("mean", number(found.mean)))
    marks.append("".join(line).rstrip())
    first, second = (max(len(label[which]) for label in labels) for which in (0, 1))
    rows = [f"{name:<{first}}  {value:>{second}}  {mark}" for (name, value), mark in zip(labels, marks, strict=True)]
    left, right = number(low), number(high)
    if len(found.values) <= _ROWS:
        rows.append(" " * (first + second + 4) + left + " " * max(1, width - len(left) - len(right)) + right)
        return rows
    return rows[:-1]  # bars have no common axis with the mean


def _labels(found: Spread) -> tuple[int, int]:
    """Columns that names and numbers take beside a plot of single seeds; bars have shorter ones."""
    names = (len(f"seed {one.seed}") for one in found.values)
    return max(names), max(len(number(value)) for value in (found.mean, *(one.value for one in found.values)))


def _bars(found: Spread, width: int) -> tuple[list[tuple[str, str]], list[str]]:
    """How many values are in each of equal parts of the range; the left end of a part belongs to it."""
    step = found.most / _BINS - found.least / _BINS
    counts = [0] * _BINS
    for one in found.values:
        counts[min(_BINS - 1, int((one.value - found.least) / step) if step else 0)] += 1
    longest = max(counts)
    labels = [(number(found.least + place * step), str(count)) for place, count in enumerate(counts)]
    return labels, ["#" * -(-count * width // longest) for count in counts]
