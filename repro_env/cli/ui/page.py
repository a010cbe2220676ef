"""A page of headings, rows and tables. On a terminal, rich draws it with colours and at its width; in a pipe it is plain text."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from repro_env.cli.ui import messages
from repro_env.io.files import atomic_write
from repro_env.pages.chart import Chart, Curve
from repro_env.pages.graph import Graph
from repro_env.pages.parts import Fields, Grid, Heading, Part, Style, Table, Text, Verdict

_NARROWEST = 40


class Page:
    """Collects parts."""

    def __init__(self, *, most: int | None = None, label: int = 12, is_file: bool = False) -> None:
        """`most`: entries that are shown of each list, or None for all. `label`: least width of the labels of rows."""
        self.is_file = is_file
        """It becomes an HTML file, and has curves."""
        self._most = most
        self._label = label
        self.complete = most is None
        """Lists are shown completely."""
        self.parts: list[Part] = []

    def heading(self, text: str, about: str = "") -> None:
        """Begin a section."""
        self.parts.append(Heading(_clean(text), _clean(about)))

    def verdict(self, word: str, about: str, style: Style) -> None:
        self.parts.append(Verdict(_clean(word), _clean(about), style))

    def row(self, label: str, text: str, *, indent: int = 2) -> None:
        """Add a label and its text. Do nothing if the text is empty."""
        if text:
            self.parts.append(Fields(_clean(label), [_clean(text)], indent, self._label))

    def rows(self, rows: Iterable[tuple[str, str]], *, indent: int = 0) -> None:
        """Add labels and their texts. A row without a label belongs to the one before."""
        for label, text in rows:
            self.row(label, text, indent=indent)

    def listing(self, label: str, items: Sequence[str]) -> None:
        """Add a label and one line for each item."""
        shown = items[: self._most]
        if shown:
            self.parts.append(Fields(_clean(label), [*map(_clean, shown)], 2, self._label))
        self.count(len(items) - len(shown), indent=4 + self._label)

    def table(
        self, rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), indent: int = 2, complete: bool = False
    ) -> None:
        """Add columns, each as wide as its widest cell. `complete`: do not shorten them."""
        shown = [tuple(map(_clean, row)) for row in rows[: None if complete else self._most]]
        if shown or header:
            self.parts.append(Table(shown, tuple(map(_clean, header)), indent))
        self.count(len(rows) - len(shown), indent=indent)

    def text(self, text: str, *, indent: int = 2) -> None:
        self.parts.append(Text(_clean(text), indent))

    def chart(self, title: str, curves: Sequence[Curve], mark: int | None = None) -> None:
        """Add curves. `mark`: the index of a value to mark."""
        curves = [curve._replace(name=_clean(curve.name)) for curve in curves]
        self.parts.append(Chart(_clean(title), curves, mark))

    def graph(self, graph: Graph) -> None:
        """Add a graph."""
        nodes = [node._replace(lines=[*map(_clean, node.lines)]) for node in graph.nodes]
        self.parts.append(graph._replace(title=_clean(graph.title), nodes=nodes))

    def count(self, count: int, *, indent: int = 2) -> None:
        """Add the number of entries that are not shown."""
        if count > 0:
            self.parts.append(Text(f"and {count:,} more (--all shows them)", indent, "dim"))

    @property
    def lines(self) -> list[str]:
        """The plain text."""
        return [line for grid in self._grids() for line in grid.plain()]

    def drawn(self, width: int) -> str:
        """The text with terminal codes, wrapped at `width` columns."""
        from rich.console import Console

        text = io.StringIO()
        console = Console(file=text, force_terminal=True, width=width, markup=False, emoji=False, highlight=False)
        for grid in self._grids():
            grid.draw(console)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def print(self) -> None:
        """Print the page on stdout."""
        if self.parts:
            terminal = messages.is_terminal(sys.stdout)
            width = max(shutil.get_terminal_size().columns, _NARROWEST)
            messages.styled(self.drawn(width) if terminal else "\n".join(self.lines))

    def _grids(self) -> Iterator[Grid]:
        for number, part in enumerate(self.parts):
            if number and isinstance(part, Heading):
                yield Grid([("",)])
            yield part.grid


def save(
    path: Path | None,
    title: str,
    build: Callable[[Page], None],
    commands: Iterable[str] = (),
    tell: Callable[[str], None] = messages.say,
) -> None:
    """Write a page to the HTML file of --html, with complete lists. Without a path, do nothing.

    `commands`: what repeats the result, one line each.
    """
    if path is not None:
        from repro_env.pages import html

        page = Page(is_file=True)
        build(page)
        atomic_write(path, html.render(_clean(title), page.parts, map(_clean, commands)))
        tell(f"the page is in {path}")


def table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> Page:
    """A page of one table."""
    page = Page()
    page.table(list(rows), header=header, indent=0)
    return page


def _clean(text: str) -> str:
    return text if text.isprintable() else messages.visible(text).replace("\n", "\\n").replace("\t", "\\t")
