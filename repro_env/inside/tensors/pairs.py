"""Pairs of files, and the answers about them."""

import json
import re
import signal
from typing import Any, Sequence

from .files import read
from .leaves import flat
from .names import paired
from .numbers import differences, finite, relative
from .unreadable import UnreadableError

_LONGEST = 24 * 3600
"""Seconds after which something is wrong."""

_NAMED = 100
"""Tensors, and values, of one file that are told one by one; the rest is counted."""

_TEXT = 500
"""Characters of a value that are told."""

_FAR = 0.01
"""`verify.outputs.NEAR`."""


def compare(left: str, right: str, numpy: Any, masks: "Sequence[tuple[str, int, str]]" = ()) -> "dict[str, Any]":
    """Two files:

    problem      why they could not be compared; nothing else then
    tensors      how many there are on the left
    different    those that differ, the 100 that differ most: see `differences`; all of them are in `unequal`
    odd          of these, tensors that hold no floats, have another shape or kind, or a value that is no number on one side alone
    far          of the others, those whose relative L2 distance is over 0.01
    diff2/left2  of the others, sums of squares: of the differences, of the left side
    missing/new  names of tensors on one side only, at most 100; all of them are in `gone` and `come`
    values       how many other values there are on the left
    others       [name, left, right] of values that differ, at most 100, null for none; all of them are in `other`
    renamed      [left, right], at most 100: names that are the same once masked
    """
    try:
        before, now = flat(read(left)), flat(read(right))
        patterns = [(re.compile(pattern, flags), replacement) for pattern, flags, replacement in masks]
        renamed = [row for place in (0, 1) for row in paired(before[place], now[place], patterns)]
        unequal = []
        for name, one in before[0].items():
            if name in now[0]:
                found = differences(name, one, now[0][name], numpy)
                if found is not None:
                    unequal.append(found)
    except Exception as error:
        return {
            "problem": ("%s: %s" % (type(error).__name__, error))[:_TEXT]
            if not isinstance(error, UnreadableError)
            else str(error)
        }
    floats = [one for one in unequal if one.get("ulp", -1) >= 0 and not one["specials"]]
    worst = sorted(range(len(unequal)), key=lambda number: -relative(unequal[number]))[:_NAMED]
    missing = [name for name in before[0] if name not in now[0]]
    new = [name for name in now[0] if name not in before[0]]
    others = []
    for name in list(before[1]) + [name for name in now[1] if name not in before[1]]:
        was, value = before[1].get(name), now[1].get(name)
        if type(was) is not type(value) or _said(was) != _said(value):
            others.append([name, _said(was), _said(value)])
    return {
        "problem": "",
        "tensors": len(before[0]),
        "different": [unequal[number] for number in sorted(worst)],
        "unequal": len(unequal),
        "odd": len(unequal) - len(floats),
        "far": sum(relative(one) > _FAR for one in floats),
        "diff2": finite(sum(one["diff2"] for one in floats)),
        "left2": finite(sum(one["left2"] for one in floats)),
        "missing": missing[:_NAMED],
        "gone": len(missing),
        "new": new[:_NAMED],
        "come": len(new),
        "values": len(before[1]),
        "others": [[_cut(text) for text in row] for row in others[:_NAMED]],
        "other": len(others),
        "renamed": [[_cut(text) for text in row] for row in renamed[:_NAMED]],
    }


def _said(value: object) -> "str | None":
    """A value as text that no other value of its type has."""
    if value is None:
        return None
    return value if isinstance(value, str) else repr(value)


def _cut(text: "str | None") -> "str | None":
    if text is None:
        return None
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _numpy_module() -> Any:
    try:
        return __import__("numpy")
    except Exception:
        return None


def main(path: str, to: str) -> None:
    signal.alarm(_LONGEST)
    with open(path, encoding="utf-8") as file:
        wanted = json.load(file)
    numpy = _numpy_module()
    with open(to, "w", encoding="utf-8") as out:
        json.dump([compare(left, right, numpy, masks) for left, right, masks in wanted], out)
