"""Statistics over seeds, compared with published quantiles and with results computed by hand."""

from __future__ import annotations

import math
import random

import pytest

from repro_env.compare import sensitivity
from repro_env.compare.sensitivity import Spread, Value


def spread(*numbers: float) -> Spread:
    found = sensitivity.spread([Value(seed=seed, value=number) for seed, number in enumerate(numbers)])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("probability", "freedom", "published"),
    # NIST/SEMATECH e-Handbook of Statistical Methods, table of the t-distribution, 1.3.6.7.2
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.975, 9, 2.262),
        (0.975, 30, 2.042),
        (0.975, 99, 1.984),
        (0.95, 5, 2.015),
        (0.995, 7, 3.499),
        (0.999, 1, 318.313),
        (0.9, 100, 1.290),
    ],
)
def test_quantiles_agree_with_published_tables(probability: float, freedom: int, published: float) -> None:
    assert sensitivity.quantile(probability, freedom) == pytest.approx(published, abs=6e-4 if published < 100 else 0.1)


def test_quantiles_of_one_and_two_degrees_agree_with_closed_forms() -> None:
    for probability in (0.75, 0.9, 0.975, 0.999):
        cauchy = math.tan(math.pi * (probability - 0.5))
        two = (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
        assert sensitivity.quantile(probability, 1) == pytest.approx(cauchy, rel=1e-11)
        assert sensitivity.quantile(probability, 2) == pytest.approx(two, rel=1e-11)


def test_the_largest_floats_do_not_overflow() -> None:
    """Their sum is infinite."""
    assert spread(0.1, 0.1, 0.1).mean == 0.1
    same = spread(*[1.7e308] * 3)
    assert (same.mean, same.median, same.deviation, same.equal) == (1.7e308, 1.7e308, 0, True)
    different = spread(1.7e308, -1.7e308)
    assert (different.mean, different.median, different.deviation) == (0, 0, math.inf)
    assert spread(1.7e308, 1, 2, 3, 4).outliers == (0,)


def test_the_quantile_for_many_values_is_close_to_the_normal_distribution() -> None:
    assert sensitivity.quantile(0.975, 100_000) == pytest.approx(1.95996, abs=1e-4)


def test_statistics_agree_with_results_computed_by_hand() -> None:
    found = spread(1, 2, 3, 4, 5)
    assert (found.mean, found.median, found.least, found.most, found.few) == (3, 3, 1, 5, False)
    assert found.deviation == pytest.approx(math.sqrt(2.5))
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert [found.low, found.high] == pytest.approx([3 - half, 3 + half], abs=1e-4)


def test_the_interval_contains_the_mean_in_95_percent_of_samples() -> None:
    generator = random.Random(0)
    for count in (3, 5, 10):
        hits = 0
        for _ in range(1000):
            found = spread(*(generator.gauss(0, 1) for _ in range(count)))
            hits += found.low <= 0 <= found.high
        assert 0.93 <= hits / 1000 <= 0.97


def test_a_single_value_has_no_statistics() -> None:
    assert sensitivity.spread([]) is None
    assert sensitivity.spread([Value(seed=1, value=1.0)]) is None
    assert sensitivity.spread([Value(seed=1, value=1.0), Value(seed=2, value=math.nan)]) is None


def test_values_that_are_not_finite_are_listed_and_not_counted() -> None:
    found = spread(1, 2, math.inf, math.nan)
    assert (found.mean, [value.seed for value in found.left_out], found.equal) == (1.5, [2, 3], False)
    assert "not finite, and not part of these statistics: seed 2 (inf), seed 3 (nan)" in sensitivity.sentences(found)
    assert not spread(1, 1, math.nan).equal


def test_fewer_than_five_seeds_give_a_warning() -> None:
    assert "only 4 seeds: too few" in " ".join(sensitivity.sentences(spread(1, 2, 3, 4)))
    assert "too few" not in " ".join(sensitivity.sentences(spread(1, 2, 3, 4, 5)))
    assert spread(1, 1, 1, 99).outliers == ()


def test_outliers_are_found_and_listed() -> None:
    assert spread(0.95, 0.951, 0.949, 0.9505, 0.9495, 0.80).outliers == (5,)
    assert spread(1, 2, 3, 4, 5, 6, 7).outliers == ()
    assert spread(2, 2, 2, 2, 3).outliers == (4,)
    assert "outlier: seed 4" in sensitivity.sentences(spread(2, 2, 2, 2, 3))


def test_equal_values_have_one_sentence() -> None:
    found = spread(0.5, 0.5, 0.5, 0.5, 0.5)
    assert found.equal
    assert sensitivity.sentences(found) == ["all 5 seeds give 0.5"]


@pytest.mark.parametrize(
    "numbers",
    [(1e308, -1e308), (5e-324, 0.0), (1.0, 1.0000000000000002), (-0.0, 0.0), (1e300, 1.0, 2.0, 3.0, 4.0), (1.7e308,) * 6],
)
def test_extreme_floats_can_be_described(numbers: tuple[float, ...]) -> None:
    assert sensitivity.sentences(spread(*numbers))
