"""A page of headings, rows and tables. On a terminal, rich draws it with colours and at its width; in a pipe it is plain text."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

from repro_env.cli.ui import messages

if TYPE_CHECKING:
    from rich.padding import Padding

Style = Literal["", "bold", "dim", "red", "green"]
_NARROWEST = 40
_LABEL = 12
_LONGEST = 60
"""Characters of a cell that count for the width of its column: a single long path must not move all other rows to the right."""


class _Table(NamedTuple):
    """Columns of text, two spaces apart."""

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

    def drawn(self) -> Padding:
        """What rich draws on a terminal. Columns become as narrow as needed, and their cells are wrapped."""
        from rich.padding import Padding
        from rich.table import Column, Table

        others = [Column(overflow="fold") for _ in range(max(map(len, self.rows)) - 1)]
        table = Table.grid(Column(style=self.style, min_width=self.label, overflow="fold"), *others, padding=(0, 2, 0, 0))
        for number, row in enumerate(self.rows):
            table.add_row(*row, style="bold" if self.header and number == 0 else "")
        return Padding(table, (0, 0, 0, self.indent))


class Page:
    """Collects tables. All text is escaped by `messages.visible`, so that it cannot move the cursor or change colours."""

    def __init__(self, *, most: int | None = None) -> None:
        """`most`: entries that are shown of each list, or None for all."""
        self._most = most
        self.complete = most is None
        """Lists are shown completely."""
        self._tables: list[_Table] = []

    def heading(self, text: str, about: str = "") -> None:
        """Begin a section."""
        if self._tables:
            self._add([("",)])
        self._add([(text, about)], style="bold")

    def verdict(self, word: str, about: str, style: Style) -> None:
        self._add([(f"{word}: {about}",)], style=style)

    def row(self, label: str, text: str, *, indent: int = 2) -> None:
        """Add a label and its text. Do nothing if the text is empty."""
        if text:
            self._add([(label, text)], indent, _LABEL)

    def listing(self, label: str, items: Sequence[str]) -> None:
        """Add a label and one line for each item."""
        shown = items[: self._most]
        self._add([("" if number else label, item) for number, item in enumerate(shown)], 2, _LABEL)
        self.count(len(items) - len(shown), indent=4 + _LABEL)

    def table(self, rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), indent: int = 2) -> None:
        """Add columns, each as wide as its widest cell."""
        shown = rows[: self._most]
        self._add([header, *shown] if header else shown, indent, header=bool(header))
        self.count(len(rows) - len(shown), indent=indent)

    def text(self, text: str, *, indent: int = 2) -> None:
        self._add([(text,)], indent)

    def count(self, count: int, *, indent: int = 2) -> None:
        """Add the number of entries that are not shown."""
        if count > 0:
            self._add([(f"and {count:,} more (--all shows them)",)], indent, style="dim")

    @property
    def lines(self) -> list[str]:
        """The plain text."""
        return [line for table in self._tables for line in table.plain()]

    def drawn(self, width: int) -> str:
        """The text with terminal codes, wrapped at `width` columns."""
        from rich.console import Console

        text = io.StringIO()
        console = Console(file=text, force_terminal=True, width=width, markup=False, emoji=False, highlight=False)
        for table in self._tables:
            console.print(table.drawn())
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def print(self) -> None:
        """Print the page on stdout."""
        if self._tables:
            terminal = messages.is_terminal(sys.stdout)
            width = max(shutil.get_terminal_size().columns, _NARROWEST)
            messages.styled(self.drawn(width) if terminal else "\n".join(self.lines))

    def _add(
        self, rows: Iterable[Sequence[str]], indent: int = 0, label: int = 0, style: Style = "", *, header: bool = False
    ) -> None:
        if cells := [tuple(map(_clean, row)) for row in rows]:
            self._tables.append(_Table(cells, indent, label, style, header))


def table(rows: Iterable[Sequence[str]], *, header: Sequence[str] = ()) -> Page:
    """A page of one table."""
    page = Page()
    page.table(list(rows), header=header, indent=0)
    return page


def _clean(text: str) -> str:
    return messages.visible(text).replace("\n", "\\n").replace("\t", "\\t")
