"""Which checkpoints stay. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from repro_env.checkpoint.errors import CheckpointError


class Best(NamedTuple):
    """A metric, and which end of it is good."""

    metric: str
    most: bool


class Candidate(NamedTuple):
    name: str
    serial: int
    metrics: Mapping[str, float]


def best(text: str) -> Best:
    """`NAME:min` or `NAME:max`. Raises `CheckpointError`: which end is good is never guessed."""
    metric, colon, end = text.rpartition(":")
    if not colon or not metric or end not in ("min", "max"):
        raise CheckpointError(
            "does not say which end is good", where=f"best={text!r}", hint="as best='accuracy:max' or best='loss:min'"
        )
    return Best(metric, end == "max")


def finest(candidates: Sequence[Candidate], by: Best) -> Optional[Candidate]:
    """The best of those that have the metric as a number; the youngest of equals. None where none has."""
    having = [one for one in candidates if math.isfinite(one.metrics.get(by.metric, math.nan))]
    sign = 1 if by.most else -1
    return max(having, key=lambda one: (sign * one.metrics[by.metric], one.serial), default=None)


def going(candidates: Sequence[Candidate], *, keep: Optional[int], by: Optional[Best]) -> list[str]:
    """Names to remove, oldest first. The youngest always stays."""
    if keep is None:
        return []
    young = sorted(candidates, key=lambda one: one.serial, reverse=True)
    stay = {one.name for one in young[: max(keep, 1)]}
    fine = finest(candidates, by) if by else None
    if fine is not None:
        stay.add(fine.name)
    return [one.name for one in reversed(young) if one.name not in stay]
