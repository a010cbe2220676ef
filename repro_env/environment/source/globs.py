"""Path patterns. All options that take a pattern of paths use these rules: those of `capture`, `verify` and `runs get`.

A pattern without a slash matches a name at any depth; a pattern with a slash matches the path from the root. `*` and `?` do not
match a slash, `**` does. `[...]` is one of several characters. A pattern that matches a directory matches everything in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from repro_env.schema.errors import UsageError

_HINT = "write a path, a name, or a pattern, for example 'data/**' or '*.csv'"


class Glob:
    """A path pattern, and whether it matched anything so far."""

    def __init__(self, text: str) -> None:
        text = text.strip().removeprefix("./").rstrip("/")
        self.anchored = "/" in text
        text = text.lstrip("/")
        self._literal_start = text.partition("*")[0].partition("?")[0].partition("[")[0]
        self._pattern = re.compile(regex(text), re.DOTALL)
        self.hit = False

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        candidates = ("/".join(parts[:end]) for end in range(1, len(parts) + 1)) if self.anchored else parts
        return any(self._pattern.fullmatch(candidate) for candidate in candidates)

    def may_match_below(self, directory: str) -> bool:
        """Whether the pattern may match a path inside this directory."""
        start = self._literal_start
        return self.anchored and (start.startswith(directory + "/") or (directory + "/").startswith(start))


def regex(glob: str) -> str:
    """Return the regular expression of a pattern. It needs the flag `re.DOTALL`."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", glob)
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(
        wildcards.get(part) or (_character_class(part) if index % 2 else re.escape(part)) for index, part in enumerate(parts)
    )


def _character_class(text: str) -> str:
    body = text[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    return f"[^{body[1:]}]" if body.startswith("!") and len(body) > 1 else "[" + body.replace("^", "\\^") + "]"


def globs(texts: Sequence[str]) -> tuple[Glob, ...]:
    """Parse patterns. Raises `UsageError` for a pattern that is not valid, or that is about paths outside the root."""
    for text in texts:
        if not text.strip("./ ") or ".." in text.split("/"):
            raise UsageError(f"the pattern {text!r} cannot match a path", hint=_HINT)
    try:
        return tuple(Glob(text) for text in texts)
    except re.error:
        raise UsageError("this is not a valid pattern", where=", ".join(texts), hint=_HINT) from None
