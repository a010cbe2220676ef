"""JSON, and lines of it, whose bytes differ: value by value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from repro_env.verify.compared import Change
from repro_env.verify.pairing import PairNames


def changes(path: str, left: str, right: str, pair_names: PairNames) -> list[Change] | None:
    """None for what is no JSON, or has a key twice in one object."""
    try:
        one, other = (_parsed(text, lines=not path.lower().endswith((".json", ".ipynb"))) for text in (left, right))
        return list(_changes("", one, other, pair_names))
    except (ValueError, RecursionError):
        return None


class _Float(float):
    """A number that keeps how it was written: two that round to one float are still two."""

    text: str

    def __init__(self, text: str) -> None:
        self.text = text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _parsed(text: str, *, lines: bool) -> object:
    def parse(text: str) -> object:
        return json.loads(text, parse_float=_Float, object_pairs_hook=_once)

    return [parse(line) for line in text.split("\n") if line.strip()] if lines else parse(text)


def _changes(name: str, one: Any, other: Any, pair_names: PairNames) -> Iterator[Change]:
    below = name + "." if name else ""
    if isinstance(one, dict) and isinstance(other, dict):
        renamed = dict(pair_names([key for key in one if key not in other], [key for key in other if key not in one]))
        for key, there in renamed.items():
            yield Change(place=below + key, at="key", then=key, now=there)
        other = {**{key: other[there] for key, there in renamed.items()}, **other}
        new = [key for key in other if key not in one and key not in renamed.values()]
        for key, value in one.items():
            if key not in other:
                yield Change(place=below + key, then=_written(value), now=None)
            else:
                yield from _changes(below + key, value, other[key], pair_names)
        for key in new:
            yield Change(place=below + key, then=None, now=_written(other[key]))
        both = [[key for key in side if key in one and key in other and key not in renamed] for side in (one, other)]
        if both[0] != both[1]:
            yield Change(place=f"{name} (order)".strip(), then=", ".join(both[0]), now=", ".join(both[1]))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (then, now) in enumerate(zip(one, other, strict=True)):
            yield from _changes(f"{below}{number}", then, now, pair_names)
    elif type(one) is not type(other) or _written(one) != _written(other):
        yield Change(place=name or "(all)", then=_written(one), now=_written(other))


def _written(value: object) -> str:
    return value.text if isinstance(value, _Float) else json.dumps(value, ensure_ascii=False)
