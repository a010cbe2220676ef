"""One thing that differs, and how much it can matter to results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from repro_env.model.codec import Frozen

Level = Literal["numerics", "distributions", "interpreter", "system", "files", "layout", "source", "data", "digests", "observed"]
"""Those that can change numbers first; `digests` follow from the ones above, `observed` changes neither image nor source."""
LEVELS: tuple[Level, ...] = get_args(Level)
_HEIGHT = {level: height for height, level in enumerate(LEVELS)}


class Difference(Frozen, frozen=True, kw_only=True):
    level: Level
    what: str
    """A distribution, variable, path, fact."""
    left: str
    """Empty: it is not there."""
    right: str
    why: str = ""
    """What follows from it, or where it comes from, in a few words."""
    of: str = ""
    """Of a path: the distribution, tree or package that it belongs to."""
    moved: bool = False
    """It follows from the environment lying at another prefix, and from nothing else."""
    counts: bool = True
    """Whether it makes the two differ; not so for observations of the machine, which no image holds."""


class NotCompared(Frozen, frozen=True, kw_only=True):
    """Something that could not be compared: it is never taken for the same."""

    what: str
    why: str


def sentence(one: Difference) -> str:
    """In a few words, `right` being what is there now and `left` what was captured."""
    about = f"{one.what} ({one.of})" if one.of else one.what
    if one.of or one.level == "files":  # a path: its size and sha256 are not for a sentence
        return f"{about} {'is gone' if not one.right else 'is new' if not one.left else 'was changed'}"
    if not one.right:
        return f"{about} {one.left} is gone"
    if not one.left:
        return f"{about} {one.right} is new"
    return f"{about} is {one.right}, {one.left} was captured"


def ordered(found: Iterable[Difference]) -> tuple[Difference, ...]:
    """What can matter most first; within a level what counts first, then by name."""
    return tuple(sorted(found, key=lambda one: (_HEIGHT[one.level], not one.counts, one.of, one.what)))
