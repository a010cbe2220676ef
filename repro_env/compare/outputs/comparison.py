"""The comparison of an output of two runs: its level, its differences and their reasons. Pairs of outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Literal

from msgspec.structs import replace

from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.globs import Glob, globs

Kind = Literal["result", "console", "ignored"]
"""A result decides the verdict. Console output is only reported. The user or the library list ignores a file."""
Sameness = Literal["bitwise", "equal except for", "numeric", "statistical", "different"]
"""In this order: all bytes are equal; every difference has a reason; the numbers are close (`judge`, `tensors`); results are
equal on average over many seeds, which one run cannot show; anything else."""
HEIGHT: dict[Sameness, int] = {"bitwise": 0, "equal except for": 1, "numeric": 2, "statistical": 3, "different": 4}
Reader = Literal["bytes", "tensors", "json", "table", "events", "text", "binary", "link", "nothing"]
Origin = Literal["evidence", "library", "user"]
"""The source of the reason for a difference."""
MOST_IGNORED = 1000
"""How many ignored differences of a file are listed. `File.ignored_count` counts all of them."""
_LONGEST = 300
"""The longest text that is shown, in characters."""


class TensorDifference(Frozen, frozen=True, kw_only=True):
    """The difference between two tensors (`guest/compare.py`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    now_dtype: str = ""
    """If this or `now_shape` is set, the tensors were not compared element by element."""
    now_shape: tuple[int, ...] = ()
    count: int = 0
    differing: int = 0
    """The number of elements with different bits."""
    at: tuple[int, ...] = ()
    """The index of the first of these elements."""
    ulp: int = -1
    """The largest distance in units in the last place; -1 if the elements are not floats."""
    absolute: float = 0.0
    """The largest absolute distance."""
    diff2: float = 0.0
    """The sum of the squared differences."""
    left2: float = 0.0
    """The sum of the squared left elements."""
    specials: int = 0
    """The number of elements that are infinite or NaN on one side only."""

    @property
    def relative(self) -> float:
        """The L2 norm of the difference divided by the L2 norm of the left side."""
        if self.now_dtype or self.specials:
            return math.inf
        return math.sqrt(self.diff2 / self.left2) if self.left2 > 0 else math.inf if self.diff2 > 0 else 0.0


class Change(Frozen, frozen=True, kw_only=True):
    """A difference between two files."""

    place: str
    """The PLACE of `--ignore FILE:PLACE`: a dotted key, a column; empty for a line of text."""
    then: str | None
    """The value in the verified run; None if it has no such value."""
    now: str | None
    """The value in the new run; None if it has no such value."""
    at: str = ""
    """The position in words: `line 12`."""
    time: bool = False
    """Whether the format defines the field as a time of writing."""
    elapsed: tuple[int, int] | None = None
    """If only the times and speeds of a progress bar differ: the most seconds that the bars of both runs show."""

    @property
    def position(self) -> str:
        """The position, such as the line, and the place in the file."""
        return ", ".join(part for part in (self.at, self.place) if part)


PACKED = Change(place="(packing)", then="", now="")
"""The difference between two files with equal values: white space, the order in an archive, the level of compression."""


class Reading(Frozen, frozen=True):
    """The differences that a reader found in two files with different bytes."""

    by: Reader
    changes: Sequence[Change]


class Ignored(Frozen, frozen=True):
    """A difference that does not count, with its reason."""

    place: str
    then: str
    now: str
    reason: str
    by: Origin


class Accept(Frozen, frozen=True):
    """A text for `--ignore`, with both values of the first difference that it accepts."""

    text: str
    then: str
    now: str


class File(Frozen, frozen=True, kw_only=True):
    """The comparison of an output."""

    path: str
    """The path in the verified run; empty if only the new run has the output."""
    now: str
    """The path in the new run; empty if the output is missing there."""
    kind: Kind
    level: Sameness | None = None
    """None if the output was not compared."""
    by: Reader = "bytes"
    why: str = ""
    """The differences, or the reason why the output was not compared."""
    ignored: tuple[Ignored, ...] = ()
    """Differences that do not count, at most `MOST_IGNORED`."""
    ignored_count: int = 0
    """The total number of differences that do not count."""
    tensors: tuple[TensorDifference, ...] = ()
    """The differences between tensors that count."""
    shown: tuple[str, ...] = ()
    """The first differences that count, as lines: `- then`, `+ now`."""
    accept: tuple[Accept, ...] = ()
    """The texts for `--ignore` that together accept all differences that count; empty if a difference has no such text."""
    accept_file: str = ""
    """The text that accepts all values of the file, or else leaves the file out; for a file whose differences have no texts."""

    @property
    def name(self) -> str:
        return self.path or self.now

    @property
    def left_out(self) -> bool:
        """Whether the complete file was left out of the comparison, and its bytes are not equal."""
        return self.kind == "ignored" and self.level is None

    @property
    def equal(self) -> bool:
        """Whether no difference counts."""
        return self.level in ("bitwise", "equal except for")

    def differing(self, why: str, by: Reader = "bytes") -> File:
        return replace(self, level="different", by=by, why=why)

    def not_compared(self, why: str) -> File:
        return replace(self, level=None, by="nothing", why=why)


def worse(first: Sameness, second: Sameness) -> Sameness:
    return max(first, second, key=HEIGHT.__getitem__)


def lines(change: Change) -> list[str]:
    """Format a difference as lines, without a line for a missing value."""
    name = f"{change.position}: " if change.position else ""
    values = (("-", change.then), ("+", change.now))
    return [f"{sign} {name}{shown(change.place, value)}" for sign, value in values if value is not None]


def shown(place: str, value: str) -> str:
    """Redact and shorten a value. The name of its place can mark it as a secret."""
    name = f"{place}: " if place else ""
    text = redact.line(f"{name}{value}").removeprefix(name)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern (`schema.globs`) is the path of an output, or matches it.

    A pattern that starts with a slash is about absolute paths: files outside the project. Other patterns with a slash are not.
    Raises `UsageError` for a pattern that is not valid.
    """
    return path in patterns or any(
        glob.matches(path.lstrip("/")) and (not glob.anchored or pattern.startswith("/") == path.startswith("/"))
        for pattern in patterns
        for glob in parse_pattern(pattern)
    )


@cache
def parse_pattern(pattern: str) -> tuple[Glob, ...]:
    """Parse a pattern of `matches`. Raises `UsageError` if it is not valid."""
    return globs([pattern])


ARROW = "-> "


def read_other(line: str) -> tuple[str, str]:
    """Split a line of `End.others`: the path, and `-> <target>` or `(why)`. The path is empty for the outputs as a whole."""
    path, arrow, target = line.partition(f" {ARROW}")
    if arrow:
        return path, ARROW + target
    if line.startswith("("):
        return "", line
    path, _, why = line.rpartition(" (")
    return path, f"({why}"


PairNames = Callable[[Sequence[str], Sequence[str]], Sequence[tuple[str, str]]]
"""Pairs the names that exist on one side only: (left names, right names) -> pairs (`judge.Judge.pair_names`)."""


class Pair(Frozen, frozen=True):
    left: str
    right: str
    same: bool
    """Whether the contents are equal."""


class Paired(Frozen, frozen=True, kw_only=True):
    pairs: tuple[Pair, ...] = ()
    """Sorted by the left path."""
    missing: tuple[str, ...] = ()
    """Only on the left side; sorted."""
    new: tuple[str, ...] = ()
    """Only on the right side; sorted."""


def by_path(_: Sequence[str], __: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return no pairs, so that only equal paths are paired."""
    return ()


def pair(left: Mapping[str, str], right: Mapping[str, str], pair_names: PairNames = by_path) -> Paired:
    """Pair the paths of two sides, path -> content. Each path is in the result exactly once."""
    pairs = [(path, path) for path in left.keys() & right.keys()]
    pairs += pair_names(sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys()))
    return Paired(
        pairs=tuple(Pair(old, new, left[old] == right[new]) for old, new in sorted(pairs)),
        missing=tuple(sorted(left.keys() - {old for old, _ in pairs})),
        new=tuple(sorted(right.keys() - {new for _, new in pairs})),
    )
