"""A page for people: headings, rows and lists that fit the terminal; plain text when it is piped."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Literal

from repro_env.cli import say

Style = Literal["bold", "dim", "red", "green"]
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32"}
_NARROWEST = 40
_LABEL = 14


class Page:
    """Collects lines. What a spec says goes through `say.visible`: it cannot move the cursor or change a colour."""

    def __init__(self, *, width: int | None = None, colour: bool = False, most: int | None = None) -> None:
        """`width`: columns, None for lines as long as they are. `most`: entries of a list, None for all."""
        self._width = None if width is None else max(width, _NARROWEST)
        self._colour = colour
        self._most = most
        self.whole = most is None
        """No list is cut."""
        self.lines: list[str] = []

    @staticmethod
    def of_stdout(*, most: int | None) -> Page:
        """Fits the terminal that stdout is; plain where it is none."""
        terminal = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if terminal else None
        return Page(width=width, colour=terminal and not os.environ.get("NO_COLOR"), most=most)

    def heading(self, text: str, about: str = "") -> None:
        """A section begins."""
        if self.lines:
            self.lines.append("")
        text, about = _clean(text), _clean(about)
        fits = self._width is None or len(text) + 2 + len(about) <= self._width
        self._add(self._styled(text, "bold") + (f"  {about}" if about and fits else ""))
        if about and not fits:
            self._wrapped("  ", about)

    def verdict(self, word: str, about: str, style: Style) -> None:
        self._add(self._styled(_clean(word), style) + f": {_clean(about)}")

    def row(self, label: str, text: str, *, indent: int = 2) -> None:
        """A label and what it is; more lines stand below the text. Nothing for an empty text."""
        if text:
            self._wrapped(f"{'':{indent}}{_clean(label):<{_LABEL}}", _clean(text))

    def listing(self, label: str, items: Sequence[str], how: str) -> None:
        """Items below each other beside a label. `how` says where the rest is to be seen."""
        shown = items if self._most is None else items[: self._most]
        for number, item in enumerate(shown):
            self._wrapped(f"  {_clean(label) if number == 0 else '':<{_LABEL}}", _clean(item))
        self._rest(len(items) - len(shown), how, indent=2 + _LABEL)

    def table(self, rows: Sequence[Sequence[str]], how: str, *, indent: int = 2) -> None:
        """Columns, each as wide as its widest cell; the last one is wrapped."""
        shown = rows if self._most is None else rows[: self._most]
        cells = [[_clean(cell) for cell in row] for row in shown]
        last = max(map(len, cells), default=1) - 1
        widths = [max(len(row[column]) for row in cells) for column in range(last)]
        for row in cells:
            before = "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True))
            self._wrapped(" " * indent + before, row[-1])
        self._rest(len(rows) - len(shown), how, indent=indent)

    def text(self, text: str, *, indent: int = 2) -> None:
        self._wrapped(" " * indent, _clean(text))

    def print(self) -> None:
        for line in self.lines:
            say.styled(line)

    def _rest(self, count: int, how: str, *, indent: int) -> None:
        if count > 0:
            self._add(" " * indent + self._styled(f"and {count:,} more ({_clean(how)})", "dim"))

    def _wrapped(self, before: str, text: str) -> None:
        """`text` after `before`, further lines indented as deep; deep beginnings get a line of their own."""
        if self._width is None or len(before) + len(text) <= self._width:
            self._add(before + text)
            return
        if len(before) > self._width // 2:
            self._add(before)
            before = " " * 6
        room = max(self._width - len(before), _NARROWEST // 2)
        for number, line in enumerate(textwrap.wrap(text, room, replace_whitespace=False, break_on_hyphens=False)):
            self._add((before if number == 0 else " " * len(before)) + line)

    def _styled(self, text: str, style: Style) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._colour else text

    def _add(self, line: str) -> None:
        self.lines.append(line.rstrip())


def _clean(text: str) -> str:
    return say.visible(text).replace("\n", "\\n").replace("\t", "\\t")
