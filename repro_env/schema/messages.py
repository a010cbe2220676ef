"""Phrases that messages of several rooms share."""

from __future__ import annotations

from collections.abc import Sequence


def shorten(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """Join the first names, and add the number of the others."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def plural(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `1,234 files`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
