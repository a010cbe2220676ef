"""Parse the trace of a training, which a process writes step by step. Pure.

`guest/seeds/_repro_env_trace.py` describes the lines. A script could write them as well, so invalid lines are ignored and
counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from repro_env.schema import redact
from repro_env.schema.codec import Frozen

_OPTIMIZERS = 4096
_TENSORS = 100_000
"""The most tensors of an optimizer."""
_DIGEST = 64
"""The longest digest, in characters."""


class Number(float):
    """A recorded number."""


class Line(msgspec.Struct, kw_only=True):
    """A line: the head of the trace, an optimizer, a step of an optimizer, or the end. Fields that were not recorded are unset."""

    trace: int = 0
    program: str = ""
    optimizer: int = -1
    kind: str = ""
    """Of an optimizer."""
    shapes: tuple[str, ...] = ()
    """`64x3x3x3:float32` for each parameter of an optimizer."""
    names: tuple[str, ...] = ()
    """The names of these parameters, if the optimizer has them."""
    step: int = -1
    """The number of the step in this process, from 1; 0 for the weights before the first step."""
    losses: tuple[Number | None, ...] | None = msgspec.field(name="loss", default=None)
    more: int = 0
    """The number of further losses."""
    rates: tuple[Number | None, ...] | None = msgspec.field(name="lr", default=None)
    """The current learning rates of the parameter groups; None for a rate on a device."""
    screen: str | None = None
    """A CRC-32 of some bytes of the weights."""
    sha256: str | None = None
    """The digest of all parameters."""
    tensors: tuple[str, ...] = ()
    """If there is a `sha256`: the start of the digest of each parameter."""
    at_exit: bool = msgspec.field(name="exit", default=False)
    end: End | None = None


class End(msgspec.Struct):
    untraced: int = 0
    steps: tuple[int, ...] = ()


class Trace(Frozen, frozen=True, kw_only=True):
    """The trace of a process."""

    program: str
    optimizers: dict[int, Line]
    """By number, as they were at their first step."""
    steps: tuple[Line, ...]
    """In order of time."""
    counts: tuple[int, ...]
    """The number of steps of each optimizer; empty if the trace has no end."""
    ended: bool
    """Whether the trace has an end. If not, its last steps may be missing."""
    untraced: int
    """The number of optimizers that were not traced."""
    invalid: int
    """The number of lines that cannot be parsed: they are truncated, or the script wrote them."""


def parse(lines: Iterable[bytes]) -> Trace:
    """Parse the lines of a trace file."""
    decoder = msgspec.json.Decoder(Line, dec_hook=_number)
    program = ""
    optimizers: dict[int, Line] = {}
    steps: list[Line] = []
    rates: dict[int, tuple[Number | None, ...]] = {}
    end: End | None = None
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
            program = redact.line(line.program)
        elif line.kind and 0 <= line.optimizer < _OPTIMIZERS:
            line.kind = redact.line(line.kind)
            line.shapes, line.names = (tuple(map(redact.line, texts[:_TENSORS])) for texts in (line.shapes, line.names))
            optimizers.setdefault(line.optimizer, line)
        elif 0 <= line.optimizer < _OPTIMIZERS and line.step >= 0:
            invalid += not all(map(_is_plain, (line.screen or "", line.sha256 or "", *line.tensors)))
            line.screen, line.sha256 = (text if text and _is_plain(text) else None for text in (line.screen, line.sha256))
            line.tensors = tuple(digest if _is_plain(digest) else "" for digest in line.tensors[:_TENSORS])
            if line.rates is not None:
                rates[line.optimizer] = line.rates
            line.rates = rates.get(line.optimizer) if line.step and not line.at_exit else None
            steps.append(line)
        else:
            invalid += 1
    return Trace(
        program=program,
        optimizers=optimizers,
        steps=tuple(steps),
        counts=() if end is None else end.steps,
        ended=end is not None,
        untraced=0 if end is None else end.untraced,
        invalid=invalid,
    )


def _is_plain(digest: str) -> bool:
    """Whether a text is a digest, or empty for a tensor without bytes. It is printed, so it must not have control characters."""
    return not digest or (len(digest) <= _DIGEST and digest.isascii() and digest.isalnum())


def _number(_: type, value: Any) -> Number:
    """Read a number. A text may be "nan" or "inf"; any other text is NaN too."""
    try:
        return Number(value)
    except ValueError:
        return Number("nan")
