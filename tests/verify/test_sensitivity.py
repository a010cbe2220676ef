"""Statistics over seeds: against published quantiles, by hand, and where they say nothing."""

from __future__ import annotations

import math
import random

import pytest

from repro_env.verify import sensitivity
from repro_env.verify.sensitivity import Spread, Value


def of(*numbers: float) -> Spread:
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
def test_quantiles_are_those_of_the_tables(probability: float, freedom: int, published: float) -> None:
    assert sensitivity.quantile(probability, freedom) == pytest.approx(published, abs=6e-4 if published < 100 else 0.1)


def test_quantiles_of_one_and_two_degrees_have_closed_forms() -> None:
    for probability in (0.75, 0.9, 0.975, 0.999):
        cauchy = math.tan(math.pi * (probability - 0.5))
        two = (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
        assert sensitivity.quantile(probability, 1) == pytest.approx(cauchy, rel=1e-11)
        assert sensitivity.quantile(probability, 2) == pytest.approx(two, rel=1e-11)


def test_numbers_that_diverged_as_far_as_they_go_are_numbers() -> None:
    """Their sum is none any more."""
    assert of(0.1, 0.1, 0.1).mean == 0.1
    same = of(*[1.7e308] * 3)
    assert (same.mean, same.median, same.deviation, same.equal) == (1.7e308, 1.7e308, 0, True)
    apart = of(1.7e308, -1.7e308)
    assert (apart.mean, apart.median, apart.deviation) == (0, 0, math.inf)
    assert of(1.7e308, 1, 2, 3, 4).outliers == (0,)


def test_with_many_values_the_quantile_is_that_of_the_normal_distribution() -> None:
    assert sensitivity.quantile(0.975, 100_000) == pytest.approx(1.95996, abs=1e-4)


def test_numbers_by_hand() -> None:
    found = of(1, 2, 3, 4, 5)
    assert (found.mean, found.median, found.least, found.most, found.few) == (3, 3, 1, 5, False)
    assert found.deviation == pytest.approx(math.sqrt(2.5))
    half = 2.7764 * math.sqrt(2.5 / 5)
    assert [found.low, found.high] == pytest.approx([3 - half, 3 + half], abs=1e-4)


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    draw = random.Random(0)
    for count in (3, 5, 10):
        held = 0
        for _ in range(1000):
            found = of(*(draw.gauss(0, 1) for _ in range(count)))
            held += found.low <= 0 <= found.high
        assert 0.93 <= held / 1000 <= 0.97


def test_one_value_has_no_range() -> None:
    assert sensitivity.spread([]) is None
    assert sensitivity.spread([Value(seed=1, value=1.0)]) is None
    assert sensitivity.spread([Value(seed=1, value=1.0), Value(seed=2, value=math.nan)]) is None


def test_what_is_no_number_is_named_and_does_not_count() -> None:
    found = of(1, 2, math.inf, math.nan)
    assert (found.mean, [one.seed for one in found.left_out], found.equal) == (1.5, [2, 3], False)
    assert "no number, and in none of these: seed 2 (inf), seed 3 (nan)" in sensitivity.sentences(found)
    same = of(1, 1, math.nan)
    assert not same.equal
    assert sensitivity.plot(same) == []


def test_fewer_than_five_seeds_say_so() -> None:
    said = " ".join(sensitivity.sentences(of(1, 2, 3, 4)))
    assert "only 4 seeds: fewer than 5 say little" in said
    assert "fewer than 5" not in " ".join(sensitivity.sentences(of(1, 2, 3, 4, 5)))
    assert of(1, 1, 1, 99).outliers == ()


def test_who_is_far_from_the_others() -> None:
    assert of(0.95, 0.951, 0.949, 0.9505, 0.9495, 0.80).outliers == (5,)
    assert of(1, 2, 3, 4, 5, 6, 7).outliers == ()
    assert of(2, 2, 2, 2, 3).outliers == (4,)
    assert "far from the others: seed 4" in sensitivity.sentences(of(2, 2, 2, 2, 3))


def test_equal_values_are_said_to_be_equal() -> None:
    found = of(0.5, 0.5, 0.5, 0.5, 0.5)
    assert found.equal
    assert sensitivity.sentences(found) == ["all 5 seeds give 0.5"]
    assert sensitivity.plot(found) == []


def test_the_plot_puts_values_and_interval_on_one_axis() -> None:
    rows = sensitivity.plot(of(1, 2, 3, 4, 5, 30), columns=49)
    assert rows == [
        "seed 0    1  .....o.........................",
        "seed 1    2  .....o.........................",
        "seed 2    3  ......o........................",
        "seed 3    4  .......o.......................",
        "seed 4    5  ........o......................",
        "seed 5   30  ..............................o  far",
        "mean    7.5  [=========|=========]",
        "             -4.16244                     30",
    ]


def test_a_plot_fits_a_narrow_terminal_as_far_as_it_can() -> None:
    found = of(1, 2, 3, 4, 5, 30)
    assert max(map(len, sensitivity.plot(found, 40))) <= 40
    assert sensitivity.plot(found, 5) == sensitivity.plot(found, 1), "narrower it says nothing any more"
    assert sensitivity.plot(found, 500) == sensitivity.plot(found)


def test_many_seeds_are_bars() -> None:
    draw = random.Random(1)
    found = of(*(draw.gauss(0, 1) for _ in range(500)))
    rows = sensitivity.plot(found)
    assert len(rows) == 15
    assert sum(int(row.split()[1]) for row in rows) == 500
    assert max(row.count("#") for row in rows) == 48


@pytest.mark.parametrize(
    "numbers",
    [(1e308, -1e308), (5e-324, 0.0), (1.0, 1.0000000000000002), (-0.0, 0.0), (1e300, 1.0, 2.0, 3.0, 4.0), (1.7e308,) * 6],
)
def test_numbers_at_the_ends_of_what_there_is(numbers: tuple[float, ...]) -> None:
    found = of(*numbers)
    assert sensitivity.sentences(found)
    for row in sensitivity.plot(found):
        assert len(row) < 100
