"""What the look into files of tensors says (`inside/tensors/pairs.py`). It ran where the outputs could be hostile: bounded, and no more trusted."""

from __future__ import annotations

import math

import msgspec

from repro_env.model.codec import Frozen


class TensorDifference(Frozen, frozen=True, kw_only=True):
    """What differs in one tensor (`inside/compare.py`)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    now_dtype: str = ""
    """With `now_shape`: the two cannot be compared element by element."""
    now_shape: tuple[int, ...] = ()
    count: int = 0
    differing: int = 0
    """Elements whose bits differ."""
    at: tuple[int, ...] = ()
    """Index of the first of them."""
    ulp: int = -1
    """The largest distance in units in the last place, of floats; else -1."""
    absolute: float = 0.0
    """The largest."""
    diff2: float = 0.0
    """Sum of the squares of the differences; `left2` of the first side's elements."""
    left2: float = 0.0
    specials: int = 0
    """Elements of which one alone is infinite or no number."""

    @property
    def relative(self) -> float:
        """L2 norm of the difference over that of the first side."""
        if self.now_dtype or self.specials:
            return math.inf
        return math.sqrt(self.diff2 / self.left2) if self.left2 > 0 else math.inf if self.diff2 > 0 else 0.0


class Answer(Frozen, frozen=True, kw_only=True):
    """What `inside/compare.py` says of one pair; see `compare` there. It ran where the outputs could be hostile: bounded, and no more trusted."""

    problem: str = ""
    tensors: int = 0
    different: tuple[TensorDifference, ...] = ()
    unequal: int = 0
    odd: int = 0
    far: int = 0
    diff2: float = 0.0
    left2: float = 0.0
    missing: tuple[str, ...] = ()
    missing_digests: tuple[str, ...] = ()
    """Of each of them: equal where a tensor has another name now, and is the same in all else. Empty: not known."""
    gone: int = 0
    new: tuple[str, ...] = ()
    new_digests: tuple[str, ...] = ()
    come: int = 0
    values: int = 0
    others: tuple[tuple[str, str | None, str | None], ...] = ()
    """Place, then, now; None for what is not there. Texts that begin with "…" are not whole."""
    other: int = 0
    """All values that differ, also those that are too many for `others`."""
    names: tuple[str, ...] = ()
    """What both files have, and what can tell who wrote them: classes of objects, members of a zip, tables, keys at the top."""


def answers(data: bytes, count: int) -> tuple[Answer, ...]:
    """What `inside/compare.py` wrote: as many answers as were asked for; all of them problems where it is not what it should be."""
    try:
        found = msgspec.json.decode(data, type=tuple[Answer, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return (Answer(problem=f"the comparison gave no answer ({type(error).__name__})"),) * count
    if len(found) != count:
        return (Answer(problem="the comparison gave other answers than were asked for"),) * count
    return found
