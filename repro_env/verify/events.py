"""TensorBoard event files whose bytes differ: record by record.

Records: length (8 bytes, little-endian), its CRC (4), that many bytes, their CRC (4) (TensorFlow, `record_writer.h`). An
`Event` has its wall time as field 1, its step as field 2, and its summary as field 5 (`event.proto`), with values in field 1; these
have their tag in field 1 and a plain number in field 2 (`summary.proto`). All other fields are compared as they are.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from repro_env.verify.compared import Change, Ignored

_WIDTH = {1: 8, 5: 4}
"""Wire type of Protocol Buffers -> bytes; 0 and 2 say their length themselves."""
_TIME, _SUMMARY, _VALUE, _TAG, _NUMBER = 1, 5, 1, 1, 2


class _Event(NamedTuple):
    time: str
    rest: bytes
    """All but the wall time and the values."""
    values: tuple[tuple[str, str], ...]
    """(tag, number or bytes)."""


def changes(left: bytes, right: bytes) -> tuple[list[Change], list[Ignored]] | None:
    """What differs, and the wall times that do; None for what is no whole event file. CRCs are not looked at."""
    one, other = _events(left), _events(right)
    if one is None or other is None:
        return None
    if len(one) != len(other):
        return [Change(place="(events)", then=f"{len(one):,} events", now=f"{len(other):,} events")], []
    found: list[Change] = []
    times: list[Ignored] = []
    for number, (then, now) in enumerate(zip(one, other, strict=True)):
        if then.time != now.time:
            reason = "a field which the format defines as the time of writing"
            times.append(Ignored(place=f"event {number}, wall time", then=then.time, now=now.time, reason=reason, by="evidence"))
        at = f"event {number}"
        if [tag for tag, _ in then.values] == [tag for tag, _ in now.values]:
            pairs = zip(then.values, now.values, strict=True)
            found += [Change(place=tag, at=at, then=value, now=there) for (tag, value), (_, there) in pairs if value != there]
        else:
            found.append(Change(place="(tags)", at=at, then=str(then.values), now=str(now.values)))
        if then.rest != now.rest:
            found.append(Change(place="(rest)", at=at, then=_shown(then.rest), now=_shown(now.rest)))
    return found, times


def _events(data: bytes) -> list[_Event] | None:
    found = []
    at = 0
    while at < len(data):
        if at + 12 > len(data):
            return None
        (size,) = struct.unpack_from("<Q", data, at)
        start = at + 12
        if start + size + 4 > len(data):
            return None
        event = _event(data[start : start + size])
        if event is None:
            return None
        found.append(event)
        at = start + size + 4
    return found


def _event(message: bytes) -> _Event | None:
    fields = _fields(message)
    if fields is None:
        return None
    time, rest, values = "", bytearray(), []
    for number, whole, body in fields:
        if number == _TIME and len(whole) == 9:
            time += str(struct.unpack("<d", whole[1:])[0])
        elif number == _SUMMARY and (read := _values(body)) is not None:
            values += read
        else:
            rest += whole
    return _Event(time, bytes(rest), tuple(values))


def _values(summary: bytes) -> list[tuple[str, str]] | None:
    """(tag, value) of each; None where it holds anything else, or a value that has not one tag."""
    found = []
    for number, _, body in _fields(summary) or [(0, b"", b"")]:
        parts = _fields(body)
        if number != _VALUE or parts is None:
            return None
        tags = [tag for part, _, tag in parts if part == _TAG]
        others = [whole for part, whole, _ in parts if part != _TAG]
        if len(tags) != 1:
            return None
        plain = len(others) == 1 and len(others[0]) == 5 and others[0][0] == (_NUMBER << 3 | 5)
        value = repr(struct.unpack("<f", others[0][1:])[0]) if plain else _shown(b"".join(others))
        found.append((tags[0].decode(errors="backslashreplace"), value))
    return found


def _shown(data: bytes) -> str:
    """As text that no other bytes have."""
    return (
        data.decode("ascii", "backslashreplace") if all(32 <= byte < 127 and byte != 92 for byte in data) else f"0x{data.hex()}"
    )


def _fields(message: bytes) -> list[tuple[int, bytes, bytes]] | None:
    """(number, the whole field, its body where it has a length); None for what is no message."""
    found = []
    at = 0
    while at < len(message):
        start = at
        tag, at = _number(message, at)
        kind, body = tag & 7, 0
        if kind == 0:
            _, at = _number(message, at)
        elif kind == 2:
            size, at = _number(message, at)
            body = at
            at += size
        elif kind in _WIDTH:
            at += _WIDTH[kind]
        else:
            return None
        if at > len(message):
            return None
        found.append((tag >> 3, message[start:at], message[body:at] if body else b""))
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends; beyond the data for one that is cut off."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 63:
            break
    return 0, len(data) + 1
