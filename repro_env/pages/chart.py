"""Curves: as SVG for a page, and as text for a terminal. Each column of pixels shows its lowest and its highest value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from repro_env.pages.parts import Grid

_WIDTH, _HEIGHT = 1440, 520
"""Half pixels, so that coordinates are whole numbers."""
_LEFT, _BOTTOM, _TOP = 128, 48, 16
_COLUMNS, _ROWS = 60, 12
_SMALLEST, _LARGEST = 1e-300, 1e300
_MARKS = "*o+x#@%&"
"""Characters of the curves in text. There are as many colours in `page.css`."""


class Curve(NamedTuple):
    name: str
    values: Sequence[float]


class Chart(NamedTuple):
    """Values in the order in which they were written."""

    title: str
    curves: Sequence[Curve]
    mark: int | None = None
    """The index of a value that is marked: the first that differs."""

    @property
    def grid(self) -> Grid:
        return Grid([*_text(self)], indent=2)


def svg(chart: Chart) -> str:
    """A chart as SVG, without scripts and styles. NaN and infinities leave a gap."""
    scale = _scale(chart)
    if scale is None:
        return ""
    least, most, count = scale
    width, height = _WIDTH - _LEFT, _HEIGHT - _BOTTOM - _TOP

    def x(index: int) -> int:
        return _LEFT + round(width * index / max(count - 1, 1))

    def y(value: float) -> int:
        return _TOP + round(height * (1 - (value - least) / (most - least)))

    lines = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for tick in _ticks(least, most):
        lines.append(f'<path class="grid" d="M{_LEFT} {y(tick)}H{_WIDTH}"/>')
        lines.append(f'<text class="end" x="{_LEFT - 12}" y="{y(tick) + 8}">{tick:.6g}</text>')
    for index in sorted({0, (count - 1) // 2, count - 1}):
        anchor = "start" if index == 0 else "end" if index == count - 1 else "middle"
        lines.append(f'<text class="{anchor}" x="{x(index)}" y="{_HEIGHT - 12}">{index + 1:,}</text>')
    if chart.mark is not None and chart.mark < count:
        lines.append(f'<path class="mark" d="M{x(chart.mark)} {_TOP}v{height}"/>')
    for number, curve in enumerate(chart.curves):
        pieces = "".join(_path([(x(index), y(value)) for index, value in piece]) for piece in _pieces(curve.values, width // 2))
        lines.append(f'<path class="curve c{number % len(_MARKS)}" d="{pieces}"/>')
    return "".join(lines) + "</svg>"


def _path(points: Sequence[tuple[int, int]]) -> str:
    """A line in the shortest form: each point relative to the one before. One point is a line of no length, which is a dot."""
    moves = [(x - left, y - top) for (left, top), (x, y) in pairwise(points)] or [(0, 0)]
    return f"M{points[0][0]} {points[0][1]}l" + " ".join(f"{x} {y}" for x, y in moves).replace(" -", "-")


def _scale(chart: Chart) -> tuple[float, float, int] | None:
    """The lowest and the highest number, which differ, and the number of values. None without a number."""
    drawn = [value for curve in chart.curves for value in curve.values if _is_drawn(value)]
    if not drawn:
        return None
    least, most = min(drawn), max(drawn)
    if most - least < _SMALLEST:
        half = max(abs(least) / 10, _SMALLEST) if least else 1.0
        least, most = least - half, most + half
    return least, most, max(len(curve.values) for curve in chart.curves)


def _is_drawn(value: float) -> bool:
    """Whether a value has a place in a chart. Differences of larger numbers are infinite."""
    return abs(value) < _LARGEST


def _ticks(least: float, most: float) -> Iterator[float]:
    """Round numbers between the ends, about five."""
    step = 10 ** math.floor(math.log10((most - least) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (most - least) / (step * factor) <= 6)
    for number in range(math.ceil(least / step), math.floor(most / step) + 1):
        yield number * step


def _pieces(values: Sequence[float], columns: int) -> Iterator[list[tuple[int, float]]]:
    """Yield the parts of a curve between its gaps: (index, value), at most two for each column."""
    per_column = max(1, len(values) // columns)
    piece: list[tuple[int, float]] = []
    for start in range(0, len(values), per_column):
        bucket = [(value, index) for index, value in enumerate(values[start : start + per_column], start) if _is_drawn(value)]
        if not bucket and piece:
            yield piece
            piece = []
        piece += sorted({(index, value) for value, index in (min(bucket), max(bucket))} if bucket else ())
    if piece:
        yield piece


def _text(chart: Chart) -> Iterator[tuple[str, str]]:
    scale = _scale(chart)
    if scale is None:
        yield "", "no numbers"
        return
    least, most, count = scale
    cells = [[" "] * _COLUMNS for _ in range(_ROWS)]
    for number, curve in enumerate(chart.curves):
        for index, value in (point for piece in _pieces(curve.values, _COLUMNS) for point in piece):
            row = round((_ROWS - 1) * (1 - (value - least) / (most - least)))
            cells[row][(_COLUMNS - 1) * index // max(count - 1, 1)] = _MARKS[number % len(_MARKS)]
    for row, line in enumerate(cells):
        tick = f"{most + (least - most) * row / (_ROWS - 1):.6g}" if row in (0, _ROWS // 2, _ROWS - 1) else ""
        yield tick, "".join(line).rstrip()
    yield "", f"1{count:>{_COLUMNS - 1},}"
    if len(chart.curves) > 1:
        for number, curve in enumerate(chart.curves):
            yield _MARKS[number % len(_MARKS)], curve.name
