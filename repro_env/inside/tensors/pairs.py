"""Pairs of files, and the answers about them."""

import json
import os
import re
import resource
import signal
from typing import Any, Sequence

from . import rows
from .files import read
from .leaves import flat, shown
from .names import paired
from .numbers import differences, finite, relative
from .sqlite import Database
from .standins import Text
from .tensor import numpy_module
from .unreadable import UnreadableError

_LONGEST = 4 * 3600
"""Seconds for one pair, after which something is wrong."""
_MEMORY = 4 << 30
"""Bytes that a look may take, beside eight times its files."""
_NAMED = 100
"""Tensors, and values, of one file that are told one by one; the rest is counted."""
_TEXT = 4000
"""Characters of a value that are told."""
_WHY = 500
_BITS = 10000
"""A whole number of more is told in hexadecimal: Python writes none of so many decimal digits."""
_FAR = 0.01
"""`verify.tensors.NEAR`."""
_TIMED = re.compile(r"key (?:mean|std)_(?:fit|score)_time")
"""scikit-learn's searches keep how long they took beside their scores (`cv_results_`)."""


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
    others       [name, left, right, text] of values that differ, at most 100, null for none; all of them are in `other`. `text`:
                 both are texts, whole, and may say no more than when, or by which random name; of longer ones there is the part
                 where they begin to differ
    renamed      [left, right], at most 100: names that are the same once masked
    timed        names of tensors that differ and hold spans of time, at most 100: with masks alone, and in none of the above
    quiet        how many other values differ that say when, or by which random name: of databases, and with masks alone
    """
    try:
        roots = read(left), read(right)
        before, now = flat(roots[0]), flat(roots[1])
        patterns = [(re.compile(pattern, flags), replacement) for pattern, flags, replacement in masks]
        renamed = paired(before[0], now[0], patterns) + paired(before[1], now[1], patterns)
        unequal = []
        timed = []
        for place, one in before[0].items():
            if place in now[0]:
                found = differences(_clean(shown(place)), one, now[0][place], numpy)
                if found is not None and masks and place and _TIMED.fullmatch(place[-1]) and "now_dtype" not in found:
                    timed.append(shown(place))
                elif found is not None:
                    unequal.append(found)
    except UnreadableError as error:
        return {"problem": _clean(str(error))[:_WHY]}
    except MemoryError:
        return {"problem": "it needs more memory than there is"}
    except Exception as error:
        return {"problem": _clean("%s: %s" % (type(error).__name__, error))[:_WHY]}
    floats = [one for one in unequal if one.get("ulp", -1) >= 0 and not one["specials"]]
    worst = sorted(range(len(unequal)), key=lambda number: -relative(unequal[number]))[:_NAMED]
    missing = [shown(place) for place in before[0] if place not in now[0]]
    new = [shown(place) for place in now[0] if place not in before[0]]
    others = []
    quiet = 0
    masked = bool(masks) and all(isinstance(root, Database) for root in roots)
    same = rows.Names()
    for place in list(before[1]) + [place for place in now[1] if place not in before[1]]:
        was, value = before[1].get(place), now[1].get(place)
        if type(was) is type(value) and _said(was) == _said(value):
            continue
        says = rows.quiet(place, was, value, (before[1], now[1]), patterns, same) if masked else False
        if says:
            quiet += 1
        else:
            others.append((shown(place), was, value, says is None))
    return {
        "problem": "",
        "tensors": len(before[0]),
        "different": [unequal[number] for number in sorted(worst)],
        "unequal": len(unequal),
        "odd": len(unequal) - len(floats),
        "far": sum(relative(one) > _FAR for one in floats),
        "diff2": finite(sum(one["diff2"] for one in floats)),
        "left2": finite(sum(one["left2"] for one in floats)),
        "missing": [_clean(name) for name in missing[:_NAMED]],
        "gone": len(missing),
        "new": [_clean(name) for name in new[:_NAMED]],
        "come": len(new),
        "values": len(before[1]),
        "others": [_told(*row) for row in others[:_NAMED]],
        "other": len(others),
        "timed": [_clean(name) for name in timed[:_NAMED]],
        "quiet": quiet,
        "renamed": [[_clean(name) for name in row] for row in renamed[:_NAMED]],
    }


def _told(name: str, was: object, value: object, counts: bool) -> "list[object]":
    then, now = _said(was), _said(value)
    if then is None or now is None:
        return [_clean(name), *(None if one is None else _clean(one)[:_TEXT] for one in (then, now)), False]
    if then == now:  # of two types
        return [_clean(name), *("%s (%s)" % (_clean(then)[:_TEXT], _type(one)) for one in (was, value)), False]
    whole = max(len(then), len(now)) <= _TEXT
    if not whole:
        at = next((n for n, (one, other) in enumerate(zip(then, now)) if one != other), min(len(then), len(now)))  # noqa: B905
        start = max(0, at - 40)
        then, now = ("%s%s" % ("…" * bool(start), one[start : start + _TEXT]) for one in (then, now))
    texts = whole and not counts and type(was) is type(value) and isinstance(was, str)
    return [_clean(name), _clean(then), _clean(now), texts]


def _said(value: object) -> "str | None":
    """A value as text that no other value of its type has."""
    if value is None:
        return None
    if isinstance(value, int) and value.bit_length() > _BITS:
        return hex(value)
    return str(value) if isinstance(value, str) else repr(value)


def _type(value: object) -> str:
    return "a word for it" if isinstance(value, Text) else type(value).__name__


def _clean(text: str) -> str:
    """Without what JSON cannot carry: halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def main(path: str, to: str) -> None:
    with open(path, encoding="utf-8") as file:
        wanted = json.load(file)
    numpy = numpy_module()
    answers = [_apart(left, right, numpy, masks) for left, right, masks in wanted]
    with open(to, "w", encoding="utf-8") as out:
        json.dump(answers, out)


def _apart(left: str, right: str, numpy: Any, masks: "Sequence[tuple[str, int, str]]") -> "dict[str, Any]":
    """`compare` in a process of its own: what a file makes it do to memory, or to itself, costs the other pairs nothing."""
    ours, its = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ours)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LONGEST)
            _bound(_MEMORY + 8 * (os.path.getsize(left) + os.path.getsize(right)))
            with os.fdopen(its, "w", encoding="utf-8") as out:
                json.dump(compare(left, right, numpy, masks), out)
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(its)
    with os.fdopen(ours, encoding="utf-8") as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"problem": "the look into it was ended by signal %d" % os.WTERMSIG(status)}
    return json.loads(said) if not status else {"problem": "the look into it failed"}


def _bound(most: int) -> None:
    """So many bytes of memory of its own: a file that asks for more is a sentence, not the kernel's victim."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
