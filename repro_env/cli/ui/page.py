"""A page of headings, rows and lists that fits the terminal. In a pipe it is plain text."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Literal

from repro_env.cli.ui import messages

Style = Literal["bold", "dim", "red", "green"]
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32"}
_NARROWEST = 40
_LABEL = 14


class Page:
    """Collects lines. All text is escaped by `say.visible`, so that it cannot move the cursor or change colours."""

    def __init__(self, *, width: int | None = None, colour: bool = False, most: int | None = None) -> None:
        """`width`: columns, or None to wrap no lines. `most`: entries that are shown of each list, or None for all."""
        self._width = None if width is None else max(width, _NARROWEST)
        self._colour = colour
        self._most = most
        self.complete = most is None
        """Lists are shown completely."""
        self.lines: list[str] = []

    @staticmethod
    def of_stdout(*, most: int | None) -> Page:
        """A page that fits the terminal of stdout, or a plain page if stdout is not a terminal."""
        terminal = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if terminal else None
        return Page(width=width, colour=terminal and not os.environ.get("NO_COLOR"), most=most)

    def heading(self, text: str, about: str = "") -> None:
        """Begin a section."""
        if self.lines:
            self.lines.append("")
        text, about = _clean(text), _clean(about)
        fits = self._width is None or len(text) + 2 + len(about) <= self._width
        self._add(self._style(text, "bold") + (f"  {about}" if about and fits else ""))
        if about and not fits:
            self._wrap("  ", about)

    def verdict(self, word: str, about: str, style: Style) -> None:
        self._add(self._style(_clean(word), style) + f": {_clean(about)}")

    def row(self, label: str, text: str, *, indent: int = 2) -> None:
        """Add a label and its text. Do nothing if the text is empty."""
        if text:
            self._wrap(f"{'':{indent}}{_clean(label):<{_LABEL}}", _clean(text))

    def listing(self, label: str, items: Sequence[str]) -> None:
        """Add a label and one line for each item."""
        shown = items if self._most is None else items[: self._most]
        for number, item in enumerate(shown):
            self._wrap(f"  {_clean(label) if number == 0 else '':<{_LABEL}}", _clean(item))
        self.count(len(items) - len(shown), indent=2 + _LABEL)

    def table(self, rows: Sequence[Sequence[str]], *, indent: int = 2) -> None:
        """Add columns, each as wide as its widest cell. The last column is wrapped."""
        shown = rows if self._most is None else rows[: self._most]
        cells = [[_clean(cell) for cell in row] for row in shown]
        last = max(map(len, cells), default=1) - 1
        widths = [max(len(row[column]) for row in cells) for column in range(last)]
        for row in cells:
            before = "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True))
            self._wrap(" " * indent + before, row[-1])
        self.count(len(rows) - len(shown), indent=indent)

    def text(self, text: str, *, indent: int = 2) -> None:
        self._wrap(" " * indent, _clean(text))

    def print(self) -> None:
        for line in self.lines:
            messages.styled(line)

    def count(self, count: int, *, indent: int = 2) -> None:
        """Add the number of entries that are not shown."""
        if count > 0:
            self._add(" " * indent + self._style(f"and {count:,} more (--all shows them)", "dim"))

    def _wrap(self, before: str, text: str) -> None:
        """Add `text` after `before`, and indent further lines by the width of `before`. A long `before` has its own line."""
        if self._width is None or len(before) + len(text) <= self._width:
            self._add(before + text)
            return
        if len(before) > self._width // 2:
            self._add(before)
            before = " " * 6
        room = max(self._width - len(before), _NARROWEST // 2)
        for number, line in enumerate(textwrap.wrap(text, room, replace_whitespace=False, break_on_hyphens=False)):
            self._add((before if number == 0 else " " * len(before)) + line)

    def _style(self, text: str, style: Style) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._colour else text

    def _add(self, line: str) -> None:
        self.lines.append(line.rstrip())


def _clean(text: str) -> str:
    return messages.visible(text).replace("\n", "\\n").replace("\t", "\\t")
