"""Statistics over seeds, compared with results computed by hand."""

from __future__ import annotations

import math

import pytest

from repro_env.compare import sensitivity
from repro_env.compare.sensitivity import Spread, Value


def spread(*numbers: float) -> Spread:
    found = sensitivity.spread([Value(seed=seed, value=number) for seed, number in enumerate(numbers)])
    assert found is not None
    return found


def test_the_largest_floats_do_not_overflow() -> None:
    """Their sum is infinite."""
    assert spread(0.1, 0.1, 0.1).mean == 0.1
    same = spread(*[1.7e308] * 3)
    assert (same.mean, same.deviation, same.equal) == (1.7e308, 0, True)
    different = spread(1.7e308, -1.7e308)
    assert (different.mean, different.deviation) == (0, math.inf)


def test_statistics_agree_with_results_computed_by_hand() -> None:
    found = spread(1, 2, 3, 4, 5)
    assert (found.mean, found.least, found.most) == (3, 1, 5)
    assert found.deviation == pytest.approx(math.sqrt(2.5))


def test_a_single_value_has_no_statistics() -> None:
    assert sensitivity.spread([]) is None
    assert sensitivity.spread([Value(seed=1, value=1.0)]) is None
    assert sensitivity.spread([Value(seed=1, value=1.0), Value(seed=2, value=math.nan)]) is None


def test_values_that_are_not_finite_are_listed_and_not_counted() -> None:
    found = spread(1, 2, math.inf, math.nan)
    assert (found.mean, [value.seed for value in found.left_out], found.equal) == (1.5, [2, 3], False)
    assert not spread(1, 1, math.nan).equal


def test_equal_values_are_said_to_be_equal() -> None:
    assert spread(0.5, 0.5, 0.5, 0.5, 0.5).equal


@pytest.mark.parametrize(
    "numbers",
    [(1e308, -1e308), (5e-324, 0.0), (1.0, 1.0000000000000002), (-0.0, 0.0), (1e300, 1.0, 2.0, 3.0, 4.0), (1.7e308,) * 6],
)
def test_extreme_floats_have_statistics(numbers: tuple[float, ...]) -> None:
    found = spread(*numbers)
    assert (found.least, found.most) == (min(numbers), max(numbers))
    assert found.least <= found.mean <= found.most
    assert found.deviation >= 0
