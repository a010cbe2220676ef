"""Two traces of training -> the first step in which they differ, and what differed first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Literal

from repro_env.model.codec import Frozen
from repro_env.verify.trace import Optimizer, Step, Trace

_NAMES = 8
"""Tensors that a sentence names."""
Kind = Literal[
    "program", "tensors", "weights before the first step", "learning rate", "loss", "weights", "weights at exit", "steps"
]
"""What differs. In one step in this order: the loss is of the forward pass before the weights change."""


class Divergence(Frozen, frozen=True, kw_only=True):
    """The first thing in which two traces of one process differ."""

    process: str
    what: Kind
    optimizer: int
    step: int
    left: str
    right: str
    equal: int | None
    """The last step after which all weights of this optimizer are known to have been equal, by sha256."""
    tensors: tuple[str, ...] = ()
    """Parameters that differ there, where their digests are known: a name, or a number and shape."""
    of: int = 0
    """How many parameters there are."""


class Compared(Frozen, frozen=True, kw_only=True):
    """Two traces of a run held against each other. Equal only where weights were compared."""

    first: tuple[Divergence, ...]
    """At most one a process, the earliest step first."""
    losses: int
    """Steps of which both sides have a loss that is a number."""
    screens: int
    digests: int
    """Digests of all weights that both sides have."""
    missing: tuple[str, ...]
    """What was not compared: processes that only one side has a trace of, traces without an end, and such."""

    @property
    def equal(self) -> bool:
        """Nothing differs, and weights were compared, by sha256."""
        return not self.first and not self.missing and self.digests > 0


def compare(left: Mapping[str, Trace], right: Mapping[str, Trace]) -> Compared:
    """Two runs, each as traces of its processes by name of the file. Each trace is asked for once, in the order of names."""
    missing = [
        f"{name}: only the {'first' if name in left else 'second'} run has a trace of it" for name in sorted({*left} ^ {*right})
    ]
    found: list[Divergence] = []
    losses = screens = digests = 0
    for name in sorted({*left} & {*right}):
        process = name.removesuffix(".jsonl")
        one = _Pair(process, left[name], right[name])
        divergence = one.first()
        if divergence is not None:
            found.append(divergence)
        missing += one.missing()
        losses, screens, digests = losses + one.losses, screens + one.screens, digests + one.digests
    return Compared(
        first=tuple(sorted(found, key=lambda one: (one.step, one.process))),
        losses=losses,
        screens=screens,
        digests=digests,
        missing=tuple(missing),
    )


class _Pair:
    """Two traces of one process."""

    def __init__(self, process: str, left: Trace, right: Trace) -> None:
        self.process = process
        self.left = left
        self.right = right
        self.losses = self.screens = self.digests = 0
        self._equal: dict[int, int] = {}

    def first(self) -> Divergence | None:
        left, right = self.left, self.right
        if left.program and right.program and left.program != right.program:  # the line that tells it may be torn off
            return self._differ("program", 0, 0, left.program, right.program)
        there = {(one.optimizer, one.step, one.at_exit): one for one in right.steps}
        seen: set[int] = set()
        for mine in left.steps:
            if mine.optimizer not in seen:  # in order of time: one that comes late may be another one because steps differed
                seen.add(mine.optimizer)
                found = self._model(mine.optimizer)
                if found is not None:
                    return found
            other = there.get((mine.optimizer, mine.step, mine.at_exit))
            if other is not None:
                found = self._step(mine, other)
                if found is not None:
                    return found
        return self._length()

    def missing(self) -> list[str]:
        """What this comparison did not see."""
        said = []
        for which, trace in (("first", self.left), ("second", self.right)):
            if not trace.ended:
                said.append(f"{self.process}: the {which} run's trace has no end, its last steps may be missing")
            if trace.untraced:
                said.append(f"{self.process}: {trace.untraced} optimizers of the {which} run were not traced")
            if trace.strange:
                said.append(f"{self.process}: {trace.strange} lines of the {which} run's trace cannot be read")
        if self.digests == 0:
            steps = f"losses of {self.losses} steps were compared, and" if self.losses else "no step was compared,"
            said.append(f"{self.process}: {steps} no digest of the weights")
        return said

    def _model(self, number: int) -> Divergence | None:
        mine, other = self.left.optimizers.get(number), self.right.optimizers.get(number)
        if mine is None or other is None or mine == other:
            return None
        return self._differ("tensors", number, 0, _model(mine), _model(other))

    def _step(self, mine: Step, other: Step) -> Divergence | None:
        number, step = mine.optimizer, mine.step
        if mine.losses is not None and other.losses is not None:
            self.losses += any(loss is not None for loss in mine.losses)
            if not _same(mine.losses, other.losses) or mine.more != other.more:
                return self._differ("loss", number, step, _text(mine.losses, mine.more), _text(other.losses, other.more))
        if mine.rates is not None and other.rates is not None and not _same(mine.rates, other.rates):
            return self._differ("learning rate", number, step, _text(mine.rates), _text(other.rates))
        if mine.sha256 is not None and other.sha256 is not None:
            self.digests += 1
            if mine.sha256 != other.sha256:
                what: Kind = "weights at exit" if mine.at_exit else "weights" if step else "weights before the first step"
                return self._differ(what, number, step, _short(mine.sha256), _short(other.sha256), self._tensors(mine, other))
            self._equal[number] = step
        if mine.screen is not None and other.screen is not None:
            self.screens += 1
            if mine.screen != other.screen:
                return self._differ("weights", number, step, f"screen {mine.screen}", f"screen {other.screen}")
        return None

    def _length(self) -> Divergence | None:
        """One that ended with fewer steps, or fewer optimizers, all of them the same."""
        if not (self.left.ended and self.right.ended):
            return None
        for number, (mine, other) in enumerate(zip_longest(self.left.counts, self.right.counts, fillvalue=0)):
            if mine != other:
                return self._differ("steps", number, min(mine, other), str(mine), str(other))
        return None

    def _tensors(self, mine: Step, other: Step) -> tuple[str, ...]:
        count = min(len(mine.tensors), len(other.tensors))
        known = self.left.optimizers.get(mine.optimizer)
        return tuple(_name(known, place) for place in range(count) if mine.tensors[place] != other.tensors[place])

    def _differ(self, what: Kind, optimizer: int, step: int, left: str, right: str, tensors: tuple[str, ...] = ()) -> Divergence:
        known = self.left.optimizers.get(optimizer)
        return Divergence(
            process=self.process,
            what=what,
            optimizer=optimizer,
            step=step,
            left=left,
            right=right,
            equal=self._equal.get(optimizer),
            tensors=tensors,
            of=len(known.shapes) if known is not None else 0,
        )


def _same(left: tuple[float | None, ...], right: tuple[float | None, ...]) -> bool:
    """Bit for bit; a loss that is no number equals another one."""
    return tuple(map(repr, left)) == tuple(map(repr, right))


def _text(values: tuple[float | None, ...], more: int = 0) -> str:
    shown = ["?" if value is None else repr(value) for value in values[:4]]
    rest = len(values) + more - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "") if values else "none"


def _short(digest: str | None) -> str:
    return f"sha256 {(digest or '')[:16]}"


def _model(one: Optimizer) -> str:
    return (
        f"{one.kind} of {len(one.shapes)} tensors ({', '.join(one.shapes[:_NAMES])}{', …' if len(one.shapes) > _NAMES else ''})"
    )


def _name(known: Optimizer | None, place: int) -> str:
    if known is not None and place < len(known.names):
        return known.names[place]
    shape = f" ({known.shapes[place]})" if known is not None and place < len(known.shapes) else ""
    return f"tensor {place}{shape}"


# --- in words


def sentence(one: Divergence) -> str:
    """What differs first, and what that points to."""
    where = f"{one.process}, optimizer {one.optimizer}" if one.optimizer else one.process
    values = f"{one.left}; {one.right}"
    if one.what == "program":
        return f"{where}: another program ({values})"
    if one.what == "tensors":
        return f"{where}: the model or the optimizer is another one before the first step ({values})"
    if one.what == "steps":
        return f"{where}: equal up to step {one.step}, then one of them ended ({one.left} and {one.right} steps)"
    if one.what == "weights before the first step":
        return f"{where}: the weights differ before the first step{_which(one)}: the initialisation or its seed"
    if one.what == "weights at exit":
        return f"{where}: the weights at the end differ{_which(one)}, no step before did{_since(one)}"
    if one.what == "learning rate":
        return f"{where}: first at step {one.step}, in the learning rate ({values}){_since(one)}"
    if one.what == "loss":
        cause = "the batch, a random number of the forward pass, or an operation in it"
        if one.equal is not None and one.equal == one.step - 1:
            return f"{where}: first at step {one.step}, in the loss ({values}), from equal weights: {cause}"
        return f"{where}: first seen at step {one.step}, in the loss ({values}){_since(one)}: {cause}"
    if one.equal is not None and one.equal == one.step - 1:
        return f"{where}: first at step {one.step}, in the weights after it{_which(one)}: the backward pass or the optimizer"
    return f"{where}: first seen at step {one.step}, in the weights after it{_which(one)}{_since(one)}"


def _which(one: Divergence) -> str:
    if not one.tensors:
        return ""
    names = ", ".join(one.tensors[:_NAMES]) + (", …" if len(one.tensors) > _NAMES else "")
    return f", in {len(one.tensors)} of {one.of} tensors ({names})"


def _since(one: Divergence) -> str:
    if one.equal is None:
        return "; whether all weights were equal before is not known"
    return f"; all weights were equal {f'after step {one.equal}' if one.equal else 'before the first'}"
