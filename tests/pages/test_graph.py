"""Graphs as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from repro_env.cli.ui.messages import visible
from repro_env.pages.graph import Graph, Node, svg
from tests.pages.hostile import HOSTILE

GRAPH = Graph(
    "lineage",
    [Node("run", ("run", "train.py"), 0), Node("a", ("a",), -1), Node("b", ("b",), -1), Node("child", ("child",), 7)],
    [("a", "run"), ("b", "run"), ("run", "child")],
)


def test_nodes_are_in_their_columns_and_edges_end_at_them() -> None:
    drawn = svg(GRAPH)
    boxes = [(int(x), int(y)) for x, y in re.findall(r'<rect class="[^"]*" x="(\d+)" y="(\d+)"', drawn)]
    assert [x for x, _ in boxes] == [260, 0, 0, 520]
    assert boxes[1][1] < boxes[0][1] < boxes[2][1]
    assert len(re.findall('class="edge"', drawn)) == 3
    assert drawn.count('class="box own"') == 1


def test_a_graph_in_text_lists_its_edges() -> None:
    assert list(GRAPH.grid.plain()) == ["  a -> run", "  b -> run", "  run -> child"]
    assert list(Graph("x", [Node("a", ("a",), 0)], []).grid.plain()) == ["  no relations"]


def test_text_in_a_graph_cannot_be_markup() -> None:
    expected = [element.tag for element in ElementTree.fromstring(svg(Graph("x", [Node("a", ("x", "y"), 0)], []))).iter()]
    for text in map(visible, HOSTILE):
        root = ElementTree.fromstring(svg(Graph(text, [Node("a", (text, text * 9), 0)], [])))
        assert [element.tag for element in root.iter()] == expected
        assert root.attrib["aria-label"] == re.sub(r"\s", " ", text)
