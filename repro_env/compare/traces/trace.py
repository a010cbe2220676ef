"""Parse the trace of a training, which a process writes step by step. Pure.

`guest/seeds/_repro_env_trace.py` describes the lines. A script could write them as well, so invalid lines are ignored and
counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from repro_env.schema import redact
from repro_env.schema.codec import Frozen

_OPTIMIZERS = 4096
_TENSORS = 100_000
"""The most tensors of an optimizer."""
_DIGEST = 64
"""The longest digest, in characters."""


class Step(Frozen, frozen=True, kw_only=True):
    """A step of an optimizer. Fields that were not recorded are None."""

    optimizer: int
    step: int
    """The number of the step in this process, from 1; 0 for the weights before the first step."""
    losses: tuple[float | None, ...] | None = None
    more: int = 0
    """The number of further losses."""
    rates: tuple[float | None, ...] | None = None
    """The current learning rates of the parameter groups; None for a rate on a device."""
    screen: str | None = None
    """A CRC-32 of some bytes of the weights."""
    sha256: str | None = None
    """The digest of all parameters."""
    tensors: tuple[str, ...] = ()
    """If there is a `sha256`: the start of the digest of each parameter."""
    at_exit: bool = False


class Optimizer(Frozen, frozen=True, kw_only=True):
    kind: str
    shapes: tuple[str, ...]
    """`64x3x3x3:float32` for each parameter."""
    names: tuple[str, ...]
    """The names of the parameters, if the optimizer has them."""


class Trace(Frozen, frozen=True, kw_only=True):
    """The trace of a process."""

    program: str
    optimizers: dict[int, Optimizer]
    """By number, as they were at their first step."""
    steps: tuple[Step, ...]
    """In order of time."""
    counts: tuple[int, ...]
    """The number of steps of each optimizer; empty if the trace has no end."""
    ended: bool
    """Whether the trace has an end. If not, its last steps may be missing."""
    untraced: int
    """The number of optimizers that were not traced."""
    invalid: int
    """The number of lines that cannot be parsed: they are truncated, or the script wrote them."""


class _End(msgspec.Struct):
    untraced: int = 0
    steps: list[int] = []


class _Line(msgspec.Struct):
    """A line. Its kind depends on the fields that are present."""

    trace: int = 0
    program: str = ""
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
    end: _End | None = None


def parse(lines: Iterable[bytes]) -> Trace:
    """Parse the lines of a trace file."""
    decoder = msgspec.json.Decoder(_Line)
    first = _Line()
    optimizers: dict[int, Optimizer] = {}
    steps: list[Step] = []
    rates: dict[int, tuple[float | None, ...]] = {}
    end: _End | None = None
    invalid = 0
    for text in lines:
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            invalid += 1
            rates.clear()  # the line may have had another learning rate
            continue
        if line.end is not None:
            end = line.end
        elif line.trace:
            first = line
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
            invalid += not all(map(_is_plain, (line.screen or "", line.sha256 or "", *line.tensors)))
        else:
            invalid += 1
    return Trace(
        program=redact.line(first.program),
        optimizers=optimizers,
        steps=tuple(steps),
        counts=() if end is None else tuple(end.steps),
        ended=end is not None,
        untraced=0 if end is None else end.untraced,
        invalid=invalid,
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
        tensors=tuple(digest if _is_plain(digest) else "" for digest in line.tensors[:_TENSORS]),
        at_exit=line.exit,
    )


def _plain(digest: str | None) -> str | None:
    return digest if digest and _is_plain(digest) else None


def _is_plain(digest: str) -> bool:
    """Whether a text is a digest, or empty for a tensor without bytes. It is printed, so it must not have control characters."""
    return not digest or (len(digest) <= _DIGEST and digest.isascii() and digest.isalnum())


def _numbers(values: list[float | str | None]) -> tuple[float | None, ...]:
    return tuple(None if value is None else _number(value) for value in values)


def _number(value: float | str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan
