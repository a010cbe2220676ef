"""A difference between two environments, images, projects or runs, and how much it can affect results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeVar, get_args

from repro_env.schema.codec import Frozen

_OfProject = Literal[
    "numerics", "distributions", "interpreter", "system", "files", "layout", "source", "data", "digests", "observed"
]
Level = Literal["command", "config", "seeds", _OfProject, "end"]
"""Sorted by the effect on results. `digests` follow from the levels before it; `observed` is not part of the image or source.
`command`, `config`, `seeds` and `end` (how the run ended) are differences between two runs."""
LEVELS: tuple[Level, ...] = get_args(Level)
_V = TypeVar("_V")
_HEIGHT = {level: height for height, level in enumerate(LEVELS)}


class Difference(Frozen, frozen=True):
    level: Level
    what: str
    """A distribution, variable, path or fact."""
    left: str
    """Empty if the left side does not have it."""
    right: str
    why: str = ""
    """The cause or the effect, in a few words."""
    of: str = ""
    """For a path: the distribution, tree or package that it belongs to. For a value of a configuration: its file."""
    moved: bool = False
    """Whether the only cause is a different prefix of the environment."""
    counts: bool = True
    """Whether it makes the two sides different. Observations of the machine do not, because they are not part of an image."""


class NotCompared(Frozen, frozen=True, kw_only=True):
    """Something that could not be compared. It does not count as equal."""

    what: str
    why: str


def compare_values(
    left: Mapping[str, _V],
    right: Mapping[str, _V],
    level: Level | Callable[[str], Level],
    why: str = "",
    *,
    describe: Callable[[_V], str] = str,
    key: Callable[[_V], object] = lambda value: value,
    counts: bool = True,
) -> Iterator[Difference]:
    """Compare values by name. `level`: of all names, or of each. `key`: what decides whether two values are equal."""
    for name in sorted(left.keys() | right.keys()):
        sides = left.get(name), right.get(name)
        old, new = ("" if value is None else describe(value) for value in sides)
        if len({None if value is None else key(value) for value in sides}) > 1:
            yield Difference(level(name) if callable(level) else level, name, old, new, why, counts=counts)


def mark(difference: Difference) -> str:
    """Return `+` if only the right side has it, `-` if only the left side has it, `~` if both sides have it."""
    return "+" if not difference.left and difference.right else "-" if difference.left and not difference.right else "~"


def sentence(difference: Difference) -> str:
    """Describe a difference. `left` is the captured state, `right` the current one."""
    what, left, right = difference.what, difference.left, difference.right
    name = f"{what} ({difference.of})" if difference.of else what
    if difference.of or difference.level == "files":  # the size and sha256 of a path are left out
        return f"{name} {'is missing' if not right else 'is new' if not left else 'has changed'}"
    if not right:
        return f"{name} {left} is missing"
    if not left:
        return f"{name} {right} is new"
    return f"{name} is {right} ({left} was captured)"


def sort_differences(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Sort differences by their effect on results; within a level, those that count come first."""
    return tuple(
        sorted(
            differences,
            key=lambda difference: (_HEIGHT[difference.level], not difference.counts, difference.of, difference.what),
        )
    )
