"""A difference between two environments, images, projects or runs, and how much it can affect results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from repro_env.schema.codec import Frozen

_OfProject = Literal[
    "numerics", "distributions", "interpreter", "system", "files", "layout", "source", "data", "digests", "observed"
]
Level = Literal["command", "config", "seeds", _OfProject, "end"]
"""Sorted by the effect on results. `digests` follow from the levels before it; `observed` is not part of the image or source.
`command`, `config`, `seeds` and `end` (how the run ended) are differences between two runs."""
LEVELS: tuple[Level, ...] = get_args(Level)
_HEIGHT = {level: height for height, level in enumerate(LEVELS)}


class Difference(Frozen, frozen=True, kw_only=True):
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
