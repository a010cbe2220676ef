"""Compare TensorBoard event files event by event (`runs.records.tensorboard` describes the format).

Fields other than times, tags and numbers are compared as bytes; checksums are not compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from repro_env.compare.outputs.comparison import Change
from repro_env.runs.records.tensorboard import BYTES, EIGHT_BYTES, FOUR_BYTES, SIMPLE, SUMMARY, TAG, TIME, VALUE, Field, fields

_APART = "·"
"""Between the parts of a message in a text, where all other characters are ASCII."""
_DEEPEST = 20
"""Messages in messages that are read."""


class _Event(NamedTuple):
    time: str
    values: list[tuple[str, str]]
    """(tag, number or bytes)."""
    others: bytes
    """All other fields."""


def changes(left: bytes, right: bytes) -> list[Change] | None:
    """Return the differences; None if a side is not an event file."""
    try:
        old, new = list(_events(left)), list(_events(right))
    except (ValueError, IndexError, struct.error):
        return None
    if len(old) != len(new):
        return [Change(place="(events)", then=f"{len(old):,} events", now=f"{len(new):,} events")]
    pairs = enumerate(zip(old, new, strict=True))
    return [change for number, (then, now) in pairs for change in _changes(f"event {number}", then, now)]


def _changes(at: str, then: _Event, now: _Event) -> Iterator[Change]:
    if then.time != now.time:
        yield Change(place="(wall time)", at=at, then=then.time, now=now.time, time=True)
    if [tag for tag, _ in then.values] != [tag for tag, _ in now.values]:
        yield Change(place="(tags)", at=at, then=str(then.values), now=str(now.values))
    else:
        for (tag, value), (_, new_value) in zip(then.values, now.values, strict=True):
            if value != new_value:
                yield Change(place=tag, at=at, then=value, now=new_value)
    if then.others != now.others:
        yield Change(place="(rest)", at=at, then=_shown(then.others), now=_shown(now.others))


def _events(data: bytes) -> Iterator[_Event]:
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        start, at = at + 12, at + 12 + size + 4
        if at > len(data):
            raise ValueError("the last record is truncated")
        yield _event(data[start : start + size])


def _event(message: bytes) -> _Event:
    time, values, others = "", [], b""
    for field in fields(message):
        if (field.number, field.wire_type) == (TIME, EIGHT_BYTES):
            time += str(struct.unpack("<d", field.data)[0])
        elif (field.number, field.wire_type) == (SUMMARY, BYTES):
            values += [_value(value) for value in fields(field.data)]
        else:
            others += field.encoded
    return _Event(time, values, others)


def _value(value: Field) -> tuple[str, str]:
    parts = list(fields(value.data))
    tags = [part.data for part in parts if part.number == TAG]
    others = [part for part in parts if part.number != TAG]
    if (value.number, value.wire_type) != (VALUE, BYTES) or len(tags) != 1:
        raise ValueError("not a value with one tag")
    if [(part.number, part.wire_type) for part in others] == [(SIMPLE, FOUR_BYTES)]:
        text = repr(struct.unpack("<f", others[0].data)[0])
    else:
        text = _shown(b"".join(part.encoded for part in others))
    return tags[0].decode(errors="backslashreplace"), text


def _shown(data: bytes) -> str:
    """Format bytes as a unique text, in which the texts of a message are apart from the bytes around them."""
    return _APART.join(part.decode("latin-1").encode("unicode_escape").decode("ascii") for part in _parts(data))


def _parts(message: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield the texts in a message, and the bytes between them."""
    is_text = all(32 <= byte < 127 for byte in message)
    try:
        found = [] if is_text or depth == _DEEPEST else list(fields(message))
    except (ValueError, IndexError):
        found = []
    if not found:
        yield message
    for field in found:
        if field.wire_type == BYTES:
            yield field.encoded[: len(field.encoded) - len(field.data)]
            yield from _parts(field.data, depth + 1)
        else:
            yield field.encoded
