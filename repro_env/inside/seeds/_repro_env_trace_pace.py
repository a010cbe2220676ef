"""How often a trace notes something, so that it takes no more than a share of the time. Standard library only, Python 3.8 and newer."""

from __future__ import annotations

_LAST = 5
"""Times of which the middle one counts: a single pause, of the machine or for an evaluation, is no pace."""


class Pace:
    """Every how many steps a thing is done: 1, or as many as asked for, or else 2, 4, 8 ... by what it takes."""

    __slots__ = ("_costs", "every", "given", "share")

    def __init__(self, share: float, given: int = 0) -> None:
        self.share = share
        self.given = given
        self.every = given or 1
        self._costs: list[float] = []

    def took(self, seconds: float, step: int) -> None:
        if step > 1:  # the first time is slower than all that follow
            self._costs = [*self._costs[1 - _LAST :], seconds]

    def fit(self, seconds: float, least: int) -> None:
        """`seconds`: of one step. `least`: not more often than that."""
        if self.given or not self._costs or seconds <= 0:
            return
        needed = _middle(self._costs) / (self.share * seconds)
        if needed > self.every or needed * 3 < self.every or self.every < least:  # not to and fro
            self.every = max(least, 1 << int(needed).bit_length())


class Steps:
    """How long a step takes."""

    __slots__ = ("_last", "_now", "_step")

    def __init__(self, now: float) -> None:
        self._now = now
        self._step = 0
        self._last: list[float] = []

    def reached(self, step: int, now: float) -> None:
        if step > self._step:
            # The first one is slower than all that follow: libraries are loaded, memory is got.
            before = self._last if self._step > 1 else []
            self._last = [*before[1 - _LAST :], (now - self._now) / (step - self._step)]
        self._now, self._step = now, step

    @property
    def seconds(self) -> float:
        """0 where none is known."""
        return _middle(self._last) if self._last else 0.0


def _middle(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]
