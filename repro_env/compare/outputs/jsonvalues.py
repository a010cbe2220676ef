"""Compare JSON and JSON Lines files value by value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from repro_env.compare.outputs.comparison import PACKED, Change, PairNames

_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\[\]{},:]+')


def changes(path: str, left: str, right: str, pair_names: PairNames) -> list[Change] | None:
    """Return the values that differ, and `PACKED` if white space differs. None if a side is not JSON or has duplicate keys."""
    by_line = not path.lower().endswith((".json", ".ipynb"))
    try:
        found = list(_changes("", _parse(left, by_line), _parse(right, by_line), pair_names))
    except (ValueError, RecursionError):
        return None
    then, now = _VALUE.split(left), _VALUE.split(right)
    return [*found, PACKED] if not found or (len(then) == len(now) and then != now) else found


class _Float(float):
    """A number with its text. Two numbers that round to the same float are still different."""

    text: str

    def __init__(self, text: str) -> None:
        self.text = text


def _parse(text: str, by_line: bool) -> object:
    def parse(text: str) -> object:
        return json.loads(text, parse_float=_Float, object_pairs_hook=_object)

    return [parse(line) for line in text.split("\n") if line.strip()] if by_line else parse(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("an object has duplicate keys")
    return keys


def _changes(name: str, left: Any, right: Any, pair_names: PairNames) -> Iterator[Change]:
    if isinstance(left, dict) and isinstance(right, dict):
        yield from _changes_of_objects(name, left, right, pair_names)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (then, now) in enumerate(zip(left, right, strict=True)):
            yield from _changes(_join(name, str(number)), then, now, pair_names)
    elif type(left) is not type(right) or _format(left) != _format(right):
        yield Change(place=name or "(all)", then=_format(left), now=_format(right))


def _changes_of_objects(name: str, left: dict[str, Any], right: dict[str, Any], pair_names: PairNames) -> Iterator[Change]:
    renamed = dict(pair_names([key for key in left if key not in right], [key for key in right if key not in left]))
    for key, new_key in renamed.items():
        yield Change(place=_join(name, key), at="key", then=key, now=new_key)
    for key, value in left.items():
        place, new_key = _join(name, key), renamed.get(key, key)
        if new_key in right:
            yield from _changes(place, value, right[new_key], pair_names)
        else:
            yield Change(place=place, then=_format(value), now=None)
    for key, value in right.items():
        if key not in left and key not in renamed.values():
            yield Change(place=_join(name, key), then=None, now=_format(value))
    old, new = [key for key in left if key in right], [key for key in right if key in left]
    if old != new:
        yield Change(place=f"{name} (order)".strip(), then=", ".join(old), now=", ".join(new))


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _format(value: object) -> str:
    return value.text if isinstance(value, _Float) else json.dumps(value, ensure_ascii=False)
