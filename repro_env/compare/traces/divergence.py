"""Find the first step in which two traces of a training differ, and what differs in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Literal

from repro_env.compare.traces.trace import Line, Trace
from repro_env.schema.codec import Frozen
from repro_env.schema.messages import shorten

_NAMES = 8
"""How many tensors a sentence names."""
Kind = Literal[
    "program", "tensors", "weights before the first step", "learning rate", "loss", "weights", "weights at exit", "steps"
]
"""What differs. In a step, the loss comes before the weights, since the forward pass computes it before they change."""


class Divergence(Frozen, frozen=True, kw_only=True):
    """The first difference between two traces of a process."""

    process: str
    what: Kind
    optimizer: int
    step: int
    left: str
    right: str
    equal: int | None
    """The last step after which all weights of this optimizer were equal, according to their sha256; None if unknown."""
    tensors: tuple[str, ...] = ()
    """The parameters that differ, if their digests are known: a name, or a number and shape."""
    of: int = 0
    """The number of all parameters."""


class Comparison(Frozen, frozen=True, kw_only=True):
    """The comparison of the traces of two runs."""

    first: tuple[Divergence, ...]
    """At most one for each process, the earliest step first."""
    losses: int
    """The number of steps with a numeric loss on both sides."""
    digests: int
    """The number of steps with a digest of all weights on both sides."""
    missing: tuple[str, ...]
    """What was not compared, such as processes with only one trace and traces without an end."""

    @property
    def equal(self) -> bool:
        """Whether everything is equal, and the digests of weights were compared."""
        return not self.first and not self.missing and self.digests > 0


def compare(left: Mapping[str, Trace], right: Mapping[str, Trace]) -> Comparison:
    """Compare the traces of two runs, by the names of their files. Each trace is read once, in the order of the names."""
    missing = [
        f"{name}: only the {'first' if name in left else 'second'} run has this trace" for name in sorted({*left} ^ {*right})
    ]
    divergences: list[Divergence] = []
    losses = digests = 0
    for name in sorted({*left} & {*right}):
        pair = _Pair(name.removesuffix(".jsonl"), left[name], right[name])
        if divergence := pair.first():
            divergences.append(divergence)
        missing += pair.missing()
        losses, digests = losses + pair.losses, digests + pair.digests
    first = sorted(divergences, key=lambda divergence: (divergence.step, divergence.process))
    return Comparison(first=tuple(first), losses=losses, digests=digests, missing=tuple(missing))


class _Pair:
    """Two traces of a process."""

    def __init__(self, process: str, left: Trace, right: Trace) -> None:
        self.process = process
        self.left = left
        self.right = right
        self.losses = self.digests = 0
        self._equal: dict[int, int] = {}

    def first(self) -> Divergence | None:
        left, right = self.left, self.right
        if left.program and right.program and left.program != right.program:  # a truncated trace may have no program
            return self._differ("program", 0, 0, left.program, right.program)
        right_steps = {(step.optimizer, step.step, step.at_exit): step for step in right.steps}
        optimizers: set[int] = set()
        for old in left.steps:
            # A late optimizer may differ because earlier steps differ, so optimizers are compared in order of time.
            if old.optimizer not in optimizers:
                optimizers.add(old.optimizer)
                if divergence := self._compare_optimizers(old.optimizer):
                    return divergence
            new = right_steps.get((old.optimizer, old.step, old.at_exit))
            if new is not None and (divergence := self._compare_steps(old, new)):
                return divergence
        return self._compare_lengths()

    def missing(self) -> list[str]:
        """What was not compared."""
        problems = []
        for run, trace in (("first", self.left), ("second", self.right)):
            if not trace.ended:
                problems.append(f"{self.process}: the trace of the {run} run has no end, so its last steps may be missing")
            if trace.untraced:
                problems.append(f"{self.process}: {trace.untraced} optimizers of the {run} run were not traced")
            if trace.invalid:
                problems.append(f"{self.process}: {trace.invalid} lines in the trace of the {run} run cannot be read")
        if self.digests == 0:
            compared = f"only the losses of {self.losses} steps" if self.losses else "no steps"
            problems.append(f"{self.process}: {compared} were compared, and no digests of the weights")
        return problems

    def _compare_optimizers(self, number: int) -> Divergence | None:
        old, new = self.left.optimizers.get(number), self.right.optimizers.get(number)
        if old is None or new is None or (old.kind, old.shapes, old.names) == (new.kind, new.shapes, new.names):
            return None
        return self._differ("tensors", number, 0, _describe(old), _describe(new))

    def _compare_steps(self, old: Line, new: Line) -> Divergence | None:
        number, step = old.optimizer, old.step
        if old.losses is not None and new.losses is not None:
            self.losses += any(loss is not None for loss in old.losses)
            if not _same(old.losses, new.losses) or old.more != new.more:
                return self._differ("loss", number, step, _text(old.losses, old.more), _text(new.losses, new.more))
        if old.rates is not None and new.rates is not None and not _same(old.rates, new.rates):
            return self._differ("learning rate", number, step, _text(old.rates), _text(new.rates))
        if old.sha256 is not None and new.sha256 is not None:
            self.digests += 1
            if old.sha256 != new.sha256:
                what: Kind = "weights at exit" if old.at_exit else "weights" if step else "weights before the first step"
                return self._differ(what, number, step, _short(old.sha256), _short(new.sha256), self._tensors(old, new))
            self._equal[number] = step
        if old.screen is not None and new.screen is not None and old.screen != new.screen:
            return self._differ("weights", number, step, f"screen {old.screen}", f"screen {new.screen}")
        return None

    def _compare_lengths(self) -> Divergence | None:
        """Compare the numbers of steps and optimizers of traces with equal steps."""
        if not (self.left.ended and self.right.ended):
            return None
        for number, (old, new) in enumerate(zip_longest(self.left.counts, self.right.counts, fillvalue=0)):
            if old != new:
                return self._differ("steps", number, min(old, new), str(old), str(new))
        return None

    def _tensors(self, old: Line, new: Line) -> tuple[str, ...]:
        """The names of the tensors that differ."""
        optimizer = self.left.optimizers.get(old.optimizer)
        pairs = zip(old.tensors, new.tensors, strict=False)
        return tuple(_name(optimizer, number) for number, (then, now) in enumerate(pairs) if then != now)

    def _differ(self, what: Kind, number: int, step: int, left: str, right: str, tensors: tuple[str, ...] = ()) -> Divergence:
        optimizer = self.left.optimizers.get(number)
        return Divergence(
            process=self.process,
            what=what,
            optimizer=number,
            step=step,
            left=left,
            right=right,
            equal=self._equal.get(number),
            tensors=tensors,
            of=len(optimizer.shapes) if optimizer is not None else 0,
        )


def _same(left: tuple[float | None, ...], right: tuple[float | None, ...]) -> bool:
    """Whether all bits are equal; NaN equals NaN."""
    return tuple(map(repr, left)) == tuple(map(repr, right))


def _text(values: tuple[float | None, ...], more: int = 0) -> str:
    texts = ["?" if value is None else repr(value) for value in values[:4]]
    more += len(values) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more else "") if values else "none"


def _short(digest: str | None) -> str:
    return f"sha256 {(digest or '')[:16]}"


def _describe(optimizer: Line) -> str:
    return f"{optimizer.kind} of {len(optimizer.shapes)} tensors ({shorten(optimizer.shapes, _NAMES)})"


def _name(optimizer: Line | None, number: int) -> str:
    if optimizer is not None and number < len(optimizer.names):
        return optimizer.names[number]
    shape = f" ({optimizer.shapes[number]})" if optimizer is not None and number < len(optimizer.shapes) else ""
    return f"tensor {number}{shape}"


def sentence(divergence: Divergence) -> str:
    """Describe a divergence and its possible causes."""
    process, step = divergence.process, divergence.step
    where = f"{process}, optimizer {divergence.optimizer}" if divergence.optimizer else process
    values = f"{divergence.left}; {divergence.right}"
    which, since = _which(divergence), _since(divergence)
    after_equal_weights = divergence.equal is not None and divergence.equal == step - 1
    if divergence.what == "program":
        return f"{where}: the programs differ ({values})"
    if divergence.what == "tensors":
        return f"{where}: the models or optimizers differ before the first step ({values})"
    if divergence.what == "steps":
        return f"{where}: equal up to step {step}, where one run ended ({divergence.left} and {divergence.right} steps)"
    if divergence.what == "weights before the first step":
        return f"{where}: the weights differ before the first step{which}: check the initialisation and its seed"
    if divergence.what == "weights at exit":
        return f"{where}: the weights differ at the end{which}, but in no step before it{since}"
    if divergence.what == "learning rate":
        return f"{where}: the first difference is the learning rate in step {step} ({values}){since}"
    if divergence.what == "loss":
        cause = "check the batch, and the random numbers and operations of the forward pass"
        if after_equal_weights:
            return f"{where}: the first difference is the loss in step {step} ({values}), with equal weights before it: {cause}"
        return f"{where}: the first known difference is the loss in step {step} ({values}){since}: {cause}"
    if after_equal_weights:
        return f"{where}: the first difference is in the weights after step {step}{which}: check the backward pass and optimizer"
    return f"{where}: the first known difference is in the weights after step {step}{which}{since}"


def _which(divergence: Divergence) -> str:
    if not divergence.tensors:
        return ""
    return f", in {len(divergence.tensors)} of {divergence.of} tensors ({shorten(divergence.tensors, _NAMES)})"


def _since(divergence: Divergence) -> str:
    if divergence.equal is None:
        return "; the weights before it were not compared"
    return f"; all weights were equal {f'after step {divergence.equal}' if divergence.equal else 'before the first step'}"
