"""Two traces of training -> the first step in which they differ, and what differed first. Pure.

The lines of a trace are told in `inside/seeds/_repro_env_trace.py`. A script could write them as well: what is not
understood is left out, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from typing import Literal

import msgspec

from repro_env.model import redact
from repro_env.model.codec import Frozen

_OPTIMIZERS = 4096
_TENSORS = 100_000
"""Of one optimizer."""
_NAMES = 8
"""Tensors that a sentence names."""
Kind = Literal[
    "program", "tensors", "weights before the first step", "learning rate", "loss", "weights", "weights at exit", "steps"
]
"""What differs. In one step in this order: the loss is of the forward pass before the weights change."""


class Step(Frozen, frozen=True, kw_only=True):
    """What was noted of a step of one optimizer; None for what was not noted."""

    optimizer: int
    step: int
    """From 1, in this process; 0 stands for the weights before the first."""
    losses: tuple[float | None, ...] | None = None
    rates: tuple[float, ...] | None = None
    """The learning rates of its groups, as they have been since they were last noted."""
    screen: str | None = None
    sha256: str | None = None
    """Of all its parameters."""
    tensors: tuple[str, ...] = ()
    """The beginning of each parameter's own digest, where `sha256` is there."""
    at_exit: bool = False


class Optimizer(Frozen, frozen=True, kw_only=True):
    kind: str
    shapes: tuple[str, ...]
    """`64x3x3x3:float32`, one for each parameter."""
    names: tuple[str, ...]
    """Where the optimizer knows them."""


class Trace(Frozen, frozen=True, kw_only=True):
    """What one process told."""

    program: str
    torch: str
    optimizers: tuple[Optimizer, ...]
    """As they were at their first step."""
    steps: tuple[Step, ...]
    """In order of time."""
    counts: tuple[int, ...]
    """Steps of each optimizer; empty where the process came to no end."""
    ended: bool
    """The process came to its end; else its last steps may be missing."""
    seconds: float | None
    """From its first step to its end."""
    spent: float | None
    """Of these, for tracing."""
    untraced: int
    """Optimizers of which nothing was noted."""
    strange: int
    """Lines that were not understood."""


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
    """Two traces of a run held against each other. Equal only where something was compared: see `counts`."""

    first: tuple[Divergence, ...]
    """At most one a process, the earliest step first."""
    losses: int
    """Steps whose losses both sides have."""
    screens: int
    digests: int
    """Digests of all weights that both sides have."""
    missing: tuple[str, ...]
    """What was not compared: processes that only one side has a trace of, traces without an end, and such."""

    @property
    def equal(self) -> bool:
        """Nothing differs, and there was something to compare."""
        return not self.first and not self.missing and self.losses + self.digests > 0


class _End(msgspec.Struct):
    seconds: float = 0.0
    spent: float = 0.0
    untraced: int = 0
    steps: list[int] = []


class _Line(msgspec.Struct):
    """Any line; which fields are there says what it is."""

    trace: int = 0
    program: str = ""
    torch: str = ""
    optimizer: int = -1
    kind: str = ""
    shapes: list[str] = []
    names: list[str] = []
    step: int = -1
    loss: list[float | str | None] | None = None
    lr: list[float | str] | None = None
    screen: str | None = None
    sha256: str | None = None
    tensors: list[str] = []
    exit: bool = False
    every: dict[str, int] | None = None
    end: _End | None = None


def parse(lines: Iterable[bytes]) -> Trace:
    """The lines of one file -> what they tell."""
    decoder = msgspec.json.Decoder(_Line)
    first = _Line()
    optimizers: dict[int, Optimizer] = {}
    steps: list[Step] = []
    rates: dict[int, tuple[float, ...]] = {}
    end: _End | None = None
    strange = 0
    for text in lines:
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            strange += 1
            continue
        if line.end is not None:
            end = line.end
        elif line.trace:
            first = line
        elif line.every is not None:
            continue
        elif line.kind and 0 <= line.optimizer < _OPTIMIZERS:
            optimizers.setdefault(
                line.optimizer,
                Optimizer(
                    kind=redact.line(line.kind),
                    shapes=tuple(map(redact.line, line.shapes[:_TENSORS])),
                    names=tuple(map(redact.line, line.names[:_TENSORS])),
                ),
            )
        elif 0 <= line.optimizer < _OPTIMIZERS and line.step >= 0:
            if line.lr is not None:
                rates[line.optimizer] = tuple(map(_number, line.lr))
            steps.append(_step(line, rates.get(line.optimizer)))
        else:
            strange += 1
    return Trace(
        program=redact.line(first.program),
        torch=redact.line(first.torch),
        optimizers=tuple(optimizers[number] for number in sorted(optimizers)),
        steps=tuple(steps),
        counts=() if end is None else tuple(end.steps),
        ended=end is not None,
        seconds=None if end is None else end.seconds,
        spent=None if end is None else end.spent,
        untraced=0 if end is None else end.untraced,
        strange=strange,
    )


def _step(line: _Line, rates: tuple[float, ...] | None) -> Step:
    losses = None if line.loss is None else tuple(None if one is None else _number(one) for one in line.loss)
    return Step(
        optimizer=line.optimizer,
        step=line.step,
        losses=losses,
        rates=rates if line.step and not line.exit else None,
        screen=line.screen,
        sha256=line.sha256 or None,
        tensors=tuple(map(redact.line, line.tensors[:_TENSORS])),
        at_exit=line.exit,
    )


def _number(value: float | str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


# --- two of them


def compare(left: Mapping[str, Trace], right: Mapping[str, Trace]) -> Compared:
    """Two runs, each as traces of its processes by name of the file."""
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
        if left.program != right.program:
            return self._differ("program", 0, 0, left.program, right.program)
        there = {(one.optimizer, one.step, one.at_exit): one for one in right.steps}
        found = self._optimizers(0)
        if found is not None:
            return found
        for mine in left.steps:
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
        if self.losses + self.digests == 0:
            said.append(f"{self.process}: no step was compared")
        return said

    def _optimizers(self, step: int) -> Divergence | None:
        for number, (mine, other) in enumerate(zip(self.left.optimizers, self.right.optimizers, strict=False)):
            if mine != other:
                return self._differ("tensors", number, step, _model(mine), _model(other))
        return None

    def _step(self, mine: Step, other: Step) -> Divergence | None:
        number, step = mine.optimizer, mine.step
        if mine.losses is not None and other.losses is not None:
            self.losses += 1
            if not _same(mine.losses, other.losses):
                return self._differ("loss", number, step, _text(mine.losses), _text(other.losses))
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
        optimizers = self.left.optimizers
        known = optimizers[mine.optimizer] if mine.optimizer < len(optimizers) else None
        return tuple(_name(known, place) for place in range(count) if mine.tensors[place] != other.tensors[place])

    def _differ(self, what: Kind, optimizer: int, step: int, left: str, right: str, tensors: tuple[str, ...] = ()) -> Divergence:
        known = self.left.optimizers[optimizer : optimizer + 1]
        return Divergence(
            process=self.process,
            what=what,
            optimizer=optimizer,
            step=step,
            left=left,
            right=right,
            equal=self._equal.get(optimizer),
            tensors=tensors,
            of=len(known[0].shapes) if known else 0,
        )


def _same(left: tuple[float | None, ...], right: tuple[float | None, ...]) -> bool:
    """Bit for bit; a loss that is no number equals another one."""
    return tuple(map(repr, left)) == tuple(map(repr, right))


def _text(values: tuple[float | None, ...]) -> str:
    shown = ["?" if value is None else repr(value) for value in values[:4]]
    return ", ".join(shown) + (f" and {len(values) - 4} more" if len(values) > 4 else "") if values else "none"


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
