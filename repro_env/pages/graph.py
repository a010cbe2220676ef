"""A graph of nodes in columns, from left to right, as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from repro_env.pages.parts import Grid

_BOX, _ROW, _COLUMN, _LINE = 200, 46, 260, 16
"""Pixels: the width of a box, and the distances of rows, columns and lines of text."""
_LONGEST = 25
"""Characters of a line in a box."""


class Node(NamedTuple):
    key: str
    lines: Sequence[str]
    """At most two; the complete text is in its title."""
    column: int
    """Any number: only the order counts."""


class Graph(NamedTuple):
    title: str
    nodes: Sequence[Node]
    """In each column from the top down. The first node is emphasized."""
    edges: Sequence[tuple[str, str]]
    """Keys: from, to."""

    @property
    def grid(self) -> Grid:
        return Grid([(f"{source} -> {target}",) for source, target in self.edges] or [("no relations",)], indent=2)


def svg(graph: Graph) -> str:
    """A graph as SVG, without scripts and styles."""
    columns = {column: number for number, column in enumerate(sorted({node.column for node in graph.nodes}))}
    heights = Counter(node.column for node in graph.nodes)
    width, height = len(columns) * _COLUMN, max(heights.values(), default=1) * _ROW
    rows: Counter[int] = Counter()
    places: dict[str, tuple[int, int]] = {}
    boxes = []
    for number, node in enumerate(graph.nodes):
        x = columns[node.column] * _COLUMN
        y = rows[node.column] * _ROW + (height - heights[node.column] * _ROW) // 2
        rows[node.column] += 1
        places[node.key] = x, y + _ROW // 2 - 4
        text = "".join(
            f'<text x="{x + 8}" y="{y - 1 + _LINE * line}">{escape(_shorten(words))}</text>'
            for line, words in enumerate(node.lines, 1)
        )
        title = f"<title>{escape(' '.join(node.lines))}</title>"
        boxes.append(
            f'<g>{title}<rect class="box{" own" * (number == 0)}" x="{x}" y="{y}" width="{_BOX}" height="{_ROW - 8}"/>{text}</g>'
        )
    lines = []
    for source, target in graph.edges:
        (left, top), (right, bottom) = places[source], places[target]
        middle = (left + _BOX + right) // 2
        lines.append(f'<path class="edge" d="M{left + _BOX} {top}C{middle} {top} {middle} {bottom} {right} {bottom}"/>')
    name = escape(graph.title)
    return f'<svg class="graph" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="{name}">{"".join(lines + boxes)}</svg>'


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
