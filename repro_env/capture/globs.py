"""Patterns of paths, as `--include` and `--exclude` take them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from repro_env.model.errors import SourceError


class Glob:
    """One pattern, and whether it ever matched."""

    def __init__(self, text: str) -> None:
        text = text.strip().removeprefix("./").rstrip("/")
        self.anchored = "/" in text
        text = text.lstrip("/")
        self.folder = text.partition("*")[0].partition("?")[0].partition("[")[0]
        self._pattern = re.compile(_regex(text), re.DOTALL)
        self.hit = False

    def matches(self, path: str) -> bool:
        parts = path.split("/")
        tried = ("/".join(parts[:end]) for end in range(1, len(parts) + 1)) if self.anchored else parts
        return any(self._pattern.fullmatch(one) for one in tried)

    def may_match_below(self, folder: str) -> bool:
        """Whether it names something inside a folder that is left out as a whole."""
        return self.anchored and (self.folder.startswith(folder + "/") or (folder + "/").startswith(self.folder))


def _regex(glob: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", glob)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(known.get(part) or (_class(part) if index % 2 else re.escape(part)) for index, part in enumerate(parts))


def _class(text: str) -> str:
    body = text[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    return f"[^{body[1:]}]" if body.startswith("!") and len(body) > 1 else "[" + body.replace("^", "\\^") + "]"


def escaped(path: str) -> str:
    """A pattern that matches just this path."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", path)


def globs(texts: Sequence[str]) -> tuple[Glob, ...]:
    for text in texts:
        if not text.strip("./ ") or ".." in text.split("/"):
            raise SourceError(
                f"not a pattern of paths inside the source: {text!r}", hint="e.g. --exclude 'data/**' or --exclude '*.csv'"
            )
    try:
        return tuple(Glob(text) for text in texts)
    except re.error:
        raise SourceError("not a valid pattern", where=", ".join(texts), hint="e.g. --exclude 'data/**'") from None
