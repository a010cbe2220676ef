"""Path patterns. All options that take a pattern of paths use these rules: those of `capture`, `verify` and `runs get`.

A pattern without a slash matches a name at any depth; a pattern with a slash matches the path from the root. `*` and `?` do not
match a slash, `**` does. `[...]` is one of several characters. A pattern that matches a directory matches everything in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate

from repro_env.schema.errors import UsageError

_NOTHING = re.compile("(?!)")
"""What `fnmatch` makes of an empty range, such as [z-a]."""
_HINT = "write a path, a name, or a pattern, for example 'data/**' or '*.csv'"


class Glob:
    """A path pattern, and whether it matched anything so far."""

    def __init__(self, text: str) -> None:
        text = text.strip().removeprefix("./").rstrip("/")
        self.anchored = "/" in text
        text = text.lstrip("/")
        self._literal_start = text.partition("*")[0].partition("?")[0].partition("[")[0]
        self._segments = [_segment(part) for part in text.split("/")]
        self.hit = False

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        # How many parts the segments so far may match. `**` leaves at least one part. Parts after the last segment are inside a
        # directory that matches. No path takes long, unlike with one regular expression for the complete pattern.
        counts: Iterable[int] = (0,) if self.anchored else range(len(parts))
        for segment in self._segments:
            if segment is None:
                counts = range(min(counts), len(parts))
            else:
                counts = [count + 1 for count in counts if count < len(parts) and segment.match(parts[count])]
            if not counts:
                return False
        return True

    def may_match_below(self, directory: str) -> bool:
        """Whether the pattern may match a path inside this directory."""
        start = self._literal_start
        return self.anchored and (start.startswith(directory + "/") or (directory + "/").startswith(start))


def _segment(text: str) -> re.Pattern[str] | None:
    """Compile what is between two slashes, with the standard rules of `fnmatch`; None for `**`."""
    try:
        pattern = re.compile(translate(text))
    except re.error:  # Python 3.10
        pattern = _NOTHING
    if _NOTHING.pattern in pattern.pattern:
        raise UsageError("this is not a valid pattern, because a range in it is empty", where=text, hint=_HINT)
    return None if text == "**" else pattern


def globs(texts: Sequence[str]) -> tuple[Glob, ...]:
    """Parse patterns. Raises `UsageError` for a pattern that is not valid, or that is about paths outside the root."""
    for text in texts:
        if not text.strip("./ ") or ".." in text.split("/"):
            raise UsageError(f"the pattern {text!r} cannot match a path", hint=_HINT)
    return tuple(Glob(text) for text in texts)
