"""Curves as SVG and as text."""

from __future__ import annotations

import math
import random
import re
from xml.etree import ElementTree

import pytest

from repro_env.cli.ui.messages import visible
from repro_env.pages.chart import Chart, Curve, svg
from tests.pages.hostile import HOSTILE


def points(drawn: str) -> list[list[tuple[int, int]]]:
    """The points of each line."""
    found = []
    for line in re.findall(r"M(\d+ \d+l[^MH\"]*)", drawn):
        first, _, moves = line.partition("l")
        numbers = [int(number) for number in re.findall(r"-?\d+", moves)]
        pairs = [tuple(map(int, first.split())), *zip(numbers[::2], numbers[1::2], strict=True)]
        found.append([(sum(x for x, _ in pairs[: end + 1]), sum(y for _, y in pairs[: end + 1])) for end in range(len(pairs))])
    return found


def test_a_curve_is_drawn_from_its_first_to_its_last_value() -> None:
    ((first, middle, last),) = points(svg(Chart("loss", [Curve("loss", [3.0, 2.0, 1.0])])))
    assert first[0] < middle[0] < last[0]
    assert first[1] < middle[1] < last[1], "y grows downwards"


def test_of_a_long_curve_each_column_shows_its_extremes() -> None:
    values = [0.0] * 100_000
    values[31_415], values[77_777] = 5.0, -5.0
    drawn = svg(Chart("x", [Curve("x", values)]))
    heights = [y for line in points(drawn) for _, y in line]
    assert len(drawn) < 30_000
    assert (min(heights), max(heights)) == (16, 472)


def test_what_is_not_a_number_leaves_a_gap() -> None:
    lines = points(svg(Chart("x", [Curve("x", [1.0, 2.0, math.nan, 4.0, math.inf, 6.0])])))
    assert [len(line) for line in lines] == [2, 2, 2], "a single value is a dot"


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.0, 0.0],
        [-7.5, -7.5],
        [1e299, -1e299],
        [5e-324, 0.0],
        [1.0, math.nextafter(1.0, 2.0)],
        [math.nan, 1e-300],
        [1e15, 1e15 + 1],
    ],
)
def test_every_range_has_a_scale(values: list[float]) -> None:
    chart = Chart("x", [Curve("x", values)], mark=0)
    ElementTree.fromstring(svg(chart))
    numbers = [number for line in points(svg(chart)) for pair in line for number in pair]
    assert numbers
    assert all(math.isfinite(number) for number in numbers)
    assert list(chart.grid.plain())


def test_without_numbers_nothing_is_drawn() -> None:
    chart = Chart("x", [Curve("x", [math.nan, 1e308]), Curve("y", [])])
    assert svg(chart) == ""
    assert [line.strip() for line in chart.grid.plain()] == ["no numbers"]


def test_text_in_a_chart_cannot_be_markup() -> None:
    expected = [element.tag for element in ElementTree.fromstring(svg(Chart("x", [Curve("x", [1.0, 2.0])]))).iter()]
    for text in map(visible, HOSTILE):
        root = ElementTree.fromstring(svg(Chart(text, [Curve(text, [1.0, 2.0])])))
        assert [element.tag for element in root.iter()] == expected
        assert root.attrib["aria-label"] == re.sub(r"\s", " ", text)


def test_curves_in_text_have_marks_and_their_names() -> None:
    generator = random.Random(0)
    left = [1 / (1 + index) for index in range(300)]
    lines = list(Chart("loss", [Curve("A", left), Curve("B", [value + generator.random() for value in left])]).grid.plain())
    assert [line.split() for line in lines[-3:]] == [["1", "300"], ["*", "A"], ["o", "B"]]
    assert lines[0].split()[0] > "1"
    assert max(map(len, lines)) < 80
