"""Compare pairs of files, each pair in its own process."""

import hashlib
import json
import os
import resource
import signal
from typing import Any, Iterator, Optional, Tuple

from .files import read
from .leaves import Flat, Place, name_of
from .numbers import difference_of, relative_distance, to_finite
from .standins import Text
from .tensor import UnreadableError, equal, numpy_module

_SECONDS = 4 * 3600
"""Time limit for one pair."""
_MEMORY = 4 << 30
"""Bytes of memory for one pair, in addition to eight times the size of its files."""
_TENSORS = 100
"""The most tensors of a file that the answer names. All of them are counted."""
_ROWS = 2000
"""The most differences of values in the answer."""
_ROWS_TEXT = 1 << 20
"""The most characters in all of them."""
_NAMES = 200
_LONGEST_NAME = 500
_TEXT = 4000
"""The most characters of a value in the answer."""
_PROBLEM = 500
_BITS = 10000
"""An integer with more bits is shown in hexadecimal: Python refuses to write so many decimal digits."""
_FAR = 0.01
"""`compare.outputs.tensors.NEAR`."""
_FAR_DOUBLE = 1e-5
"""`compare.outputs.tensors.NEAR_DOUBLE`."""


def compare(left: str, right: str, numpy: Any) -> "dict[str, Any]":
    """The differences between two files:

    problem      why they cannot be compared; then the only key
    tensors      number of tensors on the left
    different    tensors that differ, the 100 that differ most (see `difference_of`); `unequal` counts all of them
    odd          of these, tensors without floats, with different shapes or dtypes, or with NaN or infinity on one side only;
                 and doubles with a relative L2 distance over 0.00001
    far          of the remaining tensors, those with a relative L2 distance over 0.01
    diff2/left2  of the remaining tensors, the sums of squares: of the differences, of the left side
    missing/new  names of tensors on one side only, at most 100; `gone` and `come` count all of them
    missing_digests/new_digests
                 SHA-256 of each of these and its facts; empty if the facts are not plain values
    values       number of other values on the left
    others       [name, left, right] of values that differ, null if absent, at most 2,000 and 1 MiB; `other` counts all of them.
                 A long value is cut to the part where the two begin to differ, after "…" on both sides
    names        at most 200 names that both files have: classes of objects; members of a zip, tables, keys at the top
    """
    try:
        before, now = Flat(read(left)), Flat(read(right))
        unequal = list(_unequal(before, now, numpy))
        rows = [*_values(before, now), *_orders(before, now)]
    except UnreadableError as error:
        return {"problem": _clean(str(error))[:_PROBLEM]}
    except MemoryError:
        return {"problem": "the comparison ran out of memory"}
    except Exception as error:
        return {"problem": _clean("%s: %s" % (type(error).__name__, error))[:_PROBLEM]}
    floats = [tensor for tensor in unequal if not is_odd(tensor)]
    worst = sorted(range(len(unequal)), key=lambda number: -relative_distance(unequal[number]))[:_TENSORS]
    missing = [place for place in before.tensors if place not in now.tensors]
    new = [place for place in now.tensors if place not in before.tensors]
    names = [*sorted(before.classes() & now.classes()), *sorted(before.names() & now.names())]
    return {
        "problem": "",
        "tensors": len(before.tensors),
        "different": [unequal[number] for number in sorted(worst)],
        "unequal": len(unequal),
        "odd": len(unequal) - len(floats),
        "far": sum(relative_distance(tensor) > _FAR for tensor in floats),
        "diff2": to_finite(sum(tensor["diff2"] for tensor in floats)),
        "left2": to_finite(sum(tensor["left2"] for tensor in floats)),
        "missing": [_name(place) for place in missing[:_TENSORS]],
        "missing_digests": [_digest(before, place) for place in missing[:_TENSORS]],
        "gone": len(missing),
        "new": [_name(place) for place in new[:_TENSORS]],
        "new_digests": [_digest(now, place) for place in new[:_TENSORS]],
        "come": len(new),
        "values": len(before.values),
        "others": _limit(rows),
        "other": len(rows),
        "names": sorted(_clean(name) for name in names[:_NAMES] if len(name) <= _LONGEST_NAME),
    }


def is_odd(tensor: "dict[str, Any]") -> bool:
    """Whether rounding cannot explain the difference, because of what the tensor holds."""
    odd = tensor.get("ulp", -1) < 0 or tensor["specials"] > 0
    return odd or (tensor["dtype"] in ("F64", "C128") and relative_distance(tensor) > _FAR_DOUBLE)


def _unequal(before: Flat, now: Flat, numpy: Any) -> "Iterator[dict[str, Any]]":
    for place, old in before.tensors.items():
        new = now.tensors.get(place)
        if new is not None:
            same = (old.dtype, old.shape) == (new.dtype, new.shape) and equal(old.data, new.data)
            if not same:
                yield {"name": _name(place), **difference_of(old, new, numpy)}


def _digest(side: Flat, place: Place) -> str:
    tensor = side.tensors[place]
    facts = {name: side.values.get((*place, "about " + name)) for name in [*tensor.facts, "storage"]}
    if any(fact is None for name, fact in facts.items() if name != "storage"):
        return ""
    hasher = hashlib.sha256(json.dumps([tensor.dtype, tensor.shape, sorted((name, str(facts[name])) for name in facts)]).encode())
    hasher.update(tensor.data)
    return hasher.hexdigest()


Difference = Tuple[Place, Optional[str], Optional[str]]
"""A place, the old value, the new value."""


def _values(before: Flat, now: Flat) -> "Iterator[Difference]":
    for place, old in before.values.items():
        new = now.values.get(place)
        if new is None:
            if _is_reported(before, now, place):
                yield place, _text(old), None
        # Equal floats have the same text, except for the sign of zero.
        elif type(old) is not type(new) or old != new or (not old and _text(old) != _text(new)):
            texts = _text(old), _text(new)
            if texts[0] != texts[1]:
                yield (place, *texts)
            elif type(old) is not type(new):
                yield place, _text_with_type(old), _text_with_type(new)
    for place, new in now.values.items():
        if place not in before.values and _is_reported(now, before, place):
            yield place, None, _text(new)


def _is_reported(side: Flat, other: Flat, place: Place) -> bool:
    """Whether a value on one side only is in the answer: not if it is a fact about a value that is also on one side only."""
    facts = (number for number, step in enumerate(place) if step.startswith("about "))
    number = next(facts, None)
    return number is None or _has(other, place[:number]) or not _has(side, place[:number])


def _has(side: Flat, place: Place) -> bool:
    """Whether a side has a tensor, a value or a storage. The elements of a storage are in tensors at other places."""
    if place and place[-1].startswith("storage "):
        place = (*place, "about time")
    return place in side.tensors or place in side.values


def _orders(before: Flat, now: Flat) -> "Iterator[Difference]":
    """The orders of the names that both sides have, where they differ."""
    for place, steps in before.orders.items():
        new_steps = now.orders.get(place, steps)
        if steps != new_steps:
            common = set(steps).intersection(new_steps)
            old, new = ([step for step in order if step in common] for order in (steps, new_steps))
            if old != new:
                yield place, _list(old), _list(new)


def _list(steps: "list[str]") -> str:
    return ", ".join(repr(step.partition(" ")[2]) for step in steps)


def _limit(rows: "list[Difference]") -> "list[list[str | None]]":
    """The first rows that fit into the answer, each as [name, old value, new value]."""
    answer = []  # type: list[list[str | None]]
    budget = _ROWS_TEXT
    for place, old, new in rows[:_ROWS]:
        if len(old or "") > _TEXT or len(new or "") > _TEXT:
            start = max(0, len(os.path.commonprefix([old or "", new or ""])) - 40)  # noqa: RUF071 (of characters)
            old, new = (None if text is None else "…" + text[start : start + _TEXT] for text in (old, new))
        row = [_name(place), *(None if text is None else _clean(text) for text in (old, new))]
        budget -= sum(len(text or "") for text in row)
        if budget < 0:
            break
        answer.append(row)
    return answer


def _name(place: Place) -> str:
    name = name_of(place)
    return _clean(name if len(name) <= _TEXT else "…" + name[:_TEXT])


def _text(value: object) -> str:
    """The text of a value. Two values of one type have the same text only if they are equal."""
    if isinstance(value, int) and value.bit_length() > _BITS:
        return hex(value)
    return str(value) if isinstance(value, str) else repr(value)


def _text_with_type(value: object) -> str:
    """The text of a value with its type."""
    return "%s (%s)" % (_text(value), "not a text" if isinstance(value, Text) else type(value).__name__)


def _clean(text: str) -> str:
    """A text without unpaired surrogates, which JSON does not support."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def main(path: str, out_path: str) -> None:
    with open(path, encoding="utf-8") as file:
        pairs = json.load(file)
    numpy = numpy_module()
    answers = [_compare_in_child(left, right, numpy) for left, right in pairs]
    with open(out_path, "w", encoding="utf-8") as out:
        json.dump(answers, out)


def _compare_in_child(left: str, right: str, numpy: Any) -> "dict[str, Any]":
    """`compare` in a child process: a file that exhausts memory or crashes the reader does not affect the other pairs."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_SECONDS)
            _limit_memory(_MEMORY + 8 * (os.path.getsize(left) + os.path.getsize(right)))
            with os.fdopen(writing, "w", encoding="utf-8") as out:
                json.dump(compare(left, right, numpy), out)
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"problem": "the comparison was ended by signal %d" % os.WTERMSIG(status)}
    return json.loads(answer) if not status else {"problem": "the comparison failed"}


def _limit_memory(size: int) -> None:
    """Limit the data of this process: a file that needs more fails with `MemoryError`, before the kernel ends the process."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))
