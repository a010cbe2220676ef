"""One output of two runs, compared: how alike it is, by what, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from repro_env.model import redact
from repro_env.model.codec import Frozen
from repro_env.verify.answers import TensorDifference
from repro_env.verify.kinds import Kind

Sameness = Literal["bitwise", "numeric", "statistical", "different"]
"""Every bit of every result; close, within the bounds below; alike over many seeds, which one run cannot show; none of it."""
HEIGHT: dict[Sameness, int] = {"bitwise": 0, "numeric": 1, "statistical": 2, "different": 3}
SHOWN = 12
"""Lines of differences that are kept of one file."""
NAMED = 5
"""Things that are named in one sentence."""
_LINE = 300


class File(Frozen, frozen=True, kw_only=True):
    """One output, compared."""

    path: str
    """In the run that is verified; empty for one that only the new run made."""
    now: str
    """In the new run; empty for one that is missing."""
    kind: Kind
    level: Sameness | None
    """None: not compared."""
    by: Literal["bytes", "tensors", "json", "table", "events", "text", "link", "nothing"] = "bytes"
    why: str = ""
    """In a sentence: what differs, or why it was not compared."""
    apart: tuple[str, ...] = ()
    """What differs and says nothing of results."""
    tensors: tuple[TensorDifference, ...] = ()
    shown: tuple[str, ...] = ()
    """Differences as lines: `- then`, `+ now`."""


def renamed(path: str, now: str) -> tuple[str, ...]:
    return (f"its path is {now} now",) if path and now and path != now else ()


def worse(one: Sameness, other: Sameness) -> Sameness:
    return max(one, other, key=HEIGHT.__getitem__)


def some(names: Sequence[str], count: int) -> str:
    shown = ", ".join(names[:NAMED])
    more = count - min(len(names), NAMED)
    return f"{shown} and {more:,} more" if more > 0 and shown else shown or f"{count:,}"


def those(named: Sequence[str], shown: Sequence[str]) -> str:
    if not named:
        return ""
    if len(named) == 1 and len(shown) == 2:
        return f"{named[0]}: {shown[0][2:].rpartition(': ')[2]} -> {shown[1][2:].rpartition(': ')[2]}"
    return f"{some(named, len(named))} differ{'s' * (len(named) == 1)}"


def sides(name: str, then: str | None, now: str | None) -> list[str]:
    """A difference as lines; None for a side that has nothing there. `name`: with what stands before the value."""
    return [f"{sign} {name}{cut(text)}" for sign, text in (("-", then), ("+", now)) if text is not None]


def cut(text: str | None) -> str:
    text = redact.line(text or "")
    return text if len(text) <= _LINE else text[: _LINE - 1] + "…"
