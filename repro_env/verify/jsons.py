"""JSON, and lines of it, whose bytes differ: key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from repro_env.verify.closeness import value
from repro_env.verify.compared import SHOWN, File, Sameness, cut, renamed, sides, those, worse
from repro_env.verify.kinds import Kind

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_OWN = (
    # The format of notebooks asks for a random id of each cell (nbformat 4.5); papermill notes how long one took.
    (re.compile(r".*\.ipynb"), re.compile(r"cells\.\d+\.id"), re.compile(r'"[0-9a-f]{8}"')),
    (re.compile(r".*\.ipynb"), re.compile(r"(?:cells\.\d+\.)?metadata\.papermill\.duration"), _NUMBER),
    (
        re.compile(r"(?:.*/)?catboost_info/catboost_training\.json"),
        re.compile(r"iterations\.\d+\.(?:passed|remaining)_time"),
        _NUMBER,
    ),
    (re.compile(r"(?:.*/)?joblib/.*/[0-9a-f]{32}/metadata\.json"), re.compile(r"duration"), _NUMBER),
)
"""Files of libraries, their own fields that say how long something took, or have a random name, and what stands in these."""


def of_json(path: str, now: str, kind: Kind, left: str, right: str, *, masked: bool) -> File | None:
    """None for what is no JSON."""
    try:
        one, other = (_parsed(text, lines=not path.lower().endswith((".json", ".ipynb"))) for text in (left, right))
        found = list(_leaves("", one, other))
    except (ValueError, RecursionError):
        return None
    level: Sameness = "bitwise"
    apart, shown, named = list(renamed(path, now)), [], []
    for name, then, there in found:
        how = None if masked and _own(path, name, then, there) else value(name, then, there, masked=masked)
        if how is None:
            apart.append(f"{name}: {cut(then)} -> {cut(there)}")
            continue
        level = worse(level, how)
        named.append(name)
        shown += sides(f"{name}: ", then, there)
    if not found:
        apart.append("only spaces or the order of keys differ")
    return File(
        path=path,
        now=now,
        kind=kind,
        level=level,
        by="json",
        why=those(named, shown),
        apart=tuple(apart),
        shown=tuple(shown[:SHOWN]),
    )


def _own(path: str, name: str, then: str | None, now: str | None) -> bool:
    return any(
        file.fullmatch(path) and field.fullmatch(name) and all(held.fullmatch(one or "") for one in (then, now))
        for file, field, held in _OWN
    )


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
    def one(text: str) -> object:
        return json.loads(text, parse_float=_Float, object_pairs_hook=_once)

    return [one(line) for line in text.split("\n") if line.strip()] if lines else one(text)


def _leaves(name: str, one: Any, other: Any) -> Iterator[tuple[str, str | None, str | None]]:
    """(dotted name, then, now) of what differs; None for what is not there."""
    below = name + "." if name else ""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in other:
                yield below + key, json.dumps(one[key]), None
            elif key not in one:
                yield below + key, None, json.dumps(other[key])
            else:
                yield from _leaves(below + key, one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, (then, now) in enumerate(zip(one, other, strict=True)):
            yield from _leaves(f"{below}{number}", then, now)
    else:
        then, now = (each.text if isinstance(each, _Float) else json.dumps(each) for each in (one, other))
        if type(one) is not type(other) or then != now:
            yield name or "(all)", then, now
