"""What one process told of its training, step by step. Pure.

The lines of a trace are told in `inside/seeds/_repro_env_trace.py`. A script could write them as well: what is not
understood is left out, and counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from repro_env.model import redact
from repro_env.model.codec import Frozen

_OPTIMIZERS = 4096
_TENSORS = 100_000
"""Of one optimizer."""
_DIGEST = 64
"""Letters."""


class Step(Frozen, frozen=True, kw_only=True):
    """What was noted of a step of one optimizer; None for what was not noted."""

    optimizer: int
    step: int
    """From 1, in this process; 0 stands for the weights before the first."""
    losses: tuple[float | None, ...] | None = None
    more: int = 0
    """Losses beyond these."""
    rates: tuple[float | None, ...] | None = None
    """The learning rates of its groups, as they have been since they were last noted; None for one on a device."""
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
    optimizers: dict[int, Optimizer]
    """By number, as they were at their first step."""
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
    """Lines that were not understood: torn off, or written by somebody else."""


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
    more: int = 0
    lr: list[float | str | None] | None = None
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
    rates: dict[int, tuple[float | None, ...]] = {}
    end: _End | None = None
    strange = 0
    for text in lines:
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            strange += 1
            rates.clear()  # it may have told another one
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
                rates[line.optimizer] = _numbers(line.lr)
            steps.append(_step(line, rates.get(line.optimizer)))
            strange += not all(map(_is_plain, (line.screen or "", line.sha256 or "", *line.tensors)))
        else:
            strange += 1
    return Trace(
        program=redact.line(first.program),
        torch=redact.line(first.torch),
        optimizers=optimizers,
        steps=tuple(steps),
        counts=() if end is None else tuple(end.steps),
        ended=end is not None,
        seconds=None if end is None else end.seconds,
        spent=None if end is None else end.spent,
        untraced=0 if end is None else end.untraced,
        strange=strange,
    )


def _step(line: _Line, rates: tuple[float | None, ...] | None) -> Step:
    return Step(
        optimizer=line.optimizer,
        step=line.step,
        losses=None if line.loss is None else _numbers(line.loss),
        rates=rates if line.step and not line.exit else None,
        more=line.more,
        screen=_plain(line.screen),
        sha256=_plain(line.sha256),
        tensors=tuple(one if _is_plain(one) else "" for one in line.tensors[:_TENSORS]),
        at_exit=line.exit,
    )


def _plain(digest: str | None) -> str | None:
    return digest if digest and _is_plain(digest) else None


def _is_plain(digest: str) -> bool:
    """A digest, or the empty one of a tensor that has no bytes: nothing that a terminal would obey."""
    return not digest or (len(digest) <= _DIGEST and digest.isascii() and digest.isalnum())


def _numbers(values: list[float | str | None]) -> tuple[float | None, ...]:
    return tuple(None if one is None else _number(one) for one in values)


def _number(value: float | str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
