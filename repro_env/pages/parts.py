"""The parts of a page. All text is escaped, so that it cannot move the cursor, change colours or the direction of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding

Style = Literal["", "bold", "dim", "red", "green"]
_LONGEST = 60
"""Characters of a cell that count for the width of its column: a single long path must not move all other rows to the right."""
_DRAWN = 1_000
"""Rows up to which rich draws a table. It takes half a millisecond for each, and the terminal wraps longer tables too."""


class Link(str):
    """A cell of a table. In a file, it leads to `target`, a relative address without special characters."""

    target = ""

    @staticmethod
    def to(target: str, text: str) -> Link:
        link = Link(text)
        link.target = target
        return link


class Strip(str):
    """A cell of a table: levels of verification, oldest first, which a file shows as squares."""

    __slots__ = ()


class Grid(NamedTuple):
    """Columns of text, two spaces apart: how a part is shown in a pipe and on a terminal."""

    rows: Sequence[Sequence[str]]
    indent: int = 0
    label: int = 0
    """Least width of the first column."""
    style: Style = ""
    """Of the first column."""
    header: bool = False
    """Whether the first row is a header."""

    def plain(self) -> Iterator[str]:
        """The lines in a pipe, without trailing white space."""
        columns = zip_longest(*self.rows, fillvalue="")
        widths = [max((len(cell) for cell in column if len(cell) <= _LONGEST), default=0) for column in columns]
        widths[0] = max(widths[0], self.label)
        for row in self.rows:
            yield (" " * self.indent + "  ".join(map(str.ljust, row, widths))).rstrip()

    def draw(self, console: Console) -> None:
        """Print the lines on a terminal. Columns become as narrow as needed, and their cells are wrapped."""
        if len(self.rows) > _DRAWN:
            console.file.write("".join(f"{line}\n" for line in self.plain()))
        else:
            console.print(self._table())

    def _table(self) -> Padding:
        from rich.padding import Padding
        from rich.table import Column, Table

        others = [Column(overflow="fold") for _ in range(max(map(len, self.rows)) - 1)]
        table = Table.grid(Column(style=self.style, min_width=self.label, overflow="fold"), *others, padding=(0, 2, 0, 0))
        for number, row in enumerate(self.rows):
            table.add_row(*row, style="bold" if self.header and number == 0 else "")
        return Padding(table, (0, 0, 0, self.indent))


class Heading(NamedTuple):
    """Begins a section."""

    text: str
    about: str

    @property
    def grid(self) -> Grid:
        return Grid([(self.text, self.about)], style="bold")


class Verdict(NamedTuple):
    """The answer of a command."""

    word: str
    about: str
    style: Style

    @property
    def grid(self) -> Grid:
        return Grid([(f"{self.word}: {self.about}",)], style=self.style)


class Fields(NamedTuple):
    """A label and its lines."""

    label: str
    lines: Sequence[str]
    indent: int
    width: int
    """Least width of the label."""

    @property
    def grid(self) -> Grid:
        return Grid([("" if number else self.label, line) for number, line in enumerate(self.lines)], self.indent, self.width)


class Table(NamedTuple):
    rows: Sequence[Sequence[str]]
    header: Sequence[str]
    """Empty if the table has no header."""
    indent: int

    @property
    def grid(self) -> Grid:
        return Grid([self.header, *self.rows] if self.header else self.rows, self.indent, header=bool(self.header))


class Text(NamedTuple):
    text: str
    indent: int
    style: Style = ""

    @property
    def grid(self) -> Grid:
        return Grid([(self.text,)], self.indent, style=self.style)


class Part(Protocol):
    """A part of a page. The name of its type is that of a macro in `page.html.j2`."""

    @property
    def grid(self) -> Grid:
        """The part as text."""
        ...
