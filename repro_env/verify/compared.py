"""One output of two runs, compared: how alike the two are, what differs, and what of it was explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from repro_env.model import redact
from repro_env.model.codec import Frozen
from repro_env.verify.answers import TensorDifference
from repro_env.verify.kinds import Kind

Sameness = Literal["bitwise", "equal except for", "numeric", "statistical", "different"]
"""Every bit is equal; each difference is explained, and shown; close, within the bounds of `closeness` and `tensors`; alike over
many seeds, which one run cannot show; none of these."""
HEIGHT: dict[Sameness, int] = {"bitwise": 0, "equal except for": 1, "numeric": 2, "statistical": 3, "different": 4}
SHOWN = 12
"""Lines of differences that are kept of one file."""
TOLD = 1000
"""Explained differences that are kept of one file; `ignored_count` counts all."""
ACCEPTED = 200
"""`--ignore` texts that are kept of one file."""
NAMED = 5
"""Things that are named in one sentence."""
_LINE = 300
PACKING = "(packing)"
"""The place of a difference that is in no value: spaces, the order in an archive, how something was compressed."""
By = Literal["evidence", "library", "user"]


class Change(Frozen, frozen=True, kw_only=True):
    """Something that differs in a file."""

    place: str
    """What `--ignore FILE:PLACE` names: a dotted key, a column; empty for a line of text."""
    then: str | None
    """None: it is not there."""
    now: str | None
    at: str = ""
    """Where that is besides, for a reader: `line 12`."""

    @property
    def shown(self) -> str:
        """The whole place, for a reader."""
        return ", ".join(part for part in (self.at, self.place) if part)


class Ignored(Frozen, frozen=True, kw_only=True):
    """A difference that does not count, and why."""

    place: str
    then: str
    now: str
    reason: str
    by: By


class File(Frozen, frozen=True, kw_only=True):
    """One output, compared."""

    path: str
    """In the run that is verified; empty for one that only the new run made."""
    now: str
    """In the new run; empty for one that is missing."""
    kind: Kind
    level: Sameness | None
    """None: not compared."""
    by: Literal["bytes", "tensors", "json", "table", "events", "text", "binary", "link", "nothing"] = "bytes"
    why: str = ""
    """In a sentence: what differs, or why it was not compared."""
    ignored: tuple[Ignored, ...] = ()
    """Differences that were explained, at most `TOLD`."""
    ignored_count: int = 0
    """All of them."""
    tensors: tuple[TensorDifference, ...] = ()
    shown: tuple[str, ...] = ()
    """Differences that count, as lines: `- then`, `+ now`."""
    accept: tuple[str, ...] = ()
    """The texts of `--ignore` that would accept all differences that count; empty where no field of the file can be named."""


def worse(one: Sameness, other: Sameness) -> Sameness:
    return max(one, other, key=HEIGHT.__getitem__)


def some(names: Sequence[str], count: int) -> str:
    shown = ", ".join(names[:NAMED])
    more = count - min(len(names), NAMED)
    return f"{shown} and {more:,} more" if more > 0 and shown else shown or f"{count:,}"


def sides(name: str, then: str | None, now: str | None) -> list[str]:
    """A difference as lines; None for a side that has nothing there. `name`: with what stands before the value."""
    return [f"{sign} {name}{cut(text)}" for sign, text in (("-", then), ("+", now)) if text is not None]


def cut(text: str | None) -> str:
    text = redact.line(text or "")
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"
