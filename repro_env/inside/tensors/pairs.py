"""Pairs of files, and the answers about them."""

import hashlib
import json
import os
import resource
import signal
from typing import Any, Iterator, Optional, Tuple

from .files import read
from .leaves import Flat, Place, shown
from .numbers import differences, finite, relative
from .standins import Text
from .tensor import numpy_module
from .unreadable import UnreadableError

_LONGEST = 4 * 3600
"""Seconds for one pair, after which something is wrong."""
_MEMORY = 4 << 30
"""Bytes that a look may take, beside eight times its files."""
_NAMED = 100
"""Tensors of one file that are in the answer one by one; the rest is counted."""
_ROWS = 2000
_ROWS_TEXT = 1 << 20
"""Values that differ that are in the answer one by one, and the characters of all of them."""
_NAMES = 200
_LONGEST_NAME = 500
_TEXT = 4000
"""Characters of a value that are in the answer."""
_WHY = 500
_BITS = 10000
"""A whole number of more is told in hexadecimal: Python writes none of so many decimal digits."""
_FAR = 0.01
"""`verify.tensors.NEAR`."""


def compare(left: str, right: str, numpy: Any) -> "dict[str, Any]":
    """Two files:

    problem      why they could not be compared; nothing else then
    tensors      how many there are on the left
    different    those that differ, the 100 that differ most: see `differences`; all of them are in `unequal`
    odd          of these, tensors that hold no floats, have another shape or kind, or a value that is no number on one side alone
    far          of the others, those whose relative L2 distance is over 0.01
    diff2/left2  of the others, sums of squares: of the differences, of the left side
    missing/new  names of tensors on one side only, at most 100; all of them are in `gone` and `come`
    missing_digests/new_digests
                 SHA-256 of each of these, with all that is said of it; empty where that is more than a few words
    values       how many other values there are on the left
    others       [name, left, right] of values that differ, null for none, at most 2,000 and 1 MiB; all of them are in `other`. Of a
                 long value there is the part where the two begin to differ, with "…" before it on both sides
    names        at most 200 names that both files have: classes of objects; members of a zip, tables, keys at the top
    """
    try:
        before, now = Flat(read(left)), Flat(read(right))
        unequal = []
        for place, one in before.tensors.items():
            if place in now.tensors:
                found = differences(_name(place), one, now.tensors[place], numpy)
                if found is not None:
                    unequal.append(found)
        rows = [*_values(before, now), *_orders(before, now)]
    except UnreadableError as error:
        return {"problem": _clean(str(error))[:_WHY]}
    except MemoryError:
        return {"problem": "it needs more memory than there is"}
    except Exception as error:
        return {"problem": _clean("%s: %s" % (type(error).__name__, error))[:_WHY]}
    floats = [one for one in unequal if one.get("ulp", -1) >= 0 and not one["specials"]]
    worst = sorted(range(len(unequal)), key=lambda number: -relative(unequal[number]))[:_NAMED]
    missing = [place for place in before.tensors if place not in now.tensors]
    new = [place for place in now.tensors if place not in before.tensors]
    names = [*sorted(before.classes & now.classes), *sorted(before.names & now.names)]
    return {
        "problem": "",
        "tensors": len(before.tensors),
        "different": [unequal[number] for number in sorted(worst)],
        "unequal": len(unequal),
        "odd": len(unequal) - len(floats),
        "far": sum(relative(one) > _FAR for one in floats),
        "diff2": finite(sum(one["diff2"] for one in floats)),
        "left2": finite(sum(one["left2"] for one in floats)),
        "missing": [_name(place) for place in missing[:_NAMED]],
        "missing_digests": [_digest(before, place) for place in missing[:_NAMED]],
        "gone": len(missing),
        "new": [_name(place) for place in new[:_NAMED]],
        "new_digests": [_digest(now, place) for place in new[:_NAMED]],
        "come": len(new),
        "values": len(before.values),
        "others": _bounded(rows),
        "other": len(rows),
        "names": sorted(_clean(name) for name in names[:_NAMES] if len(name) <= _LONGEST_NAME),
    }


def _digest(side: Flat, place: Place) -> str:
    tensor = side.tensors[place]
    facts = {name: side.values.get((*place, "about " + name)) for name in [*tensor.facts, "storage"]}
    if any(fact is None for name, fact in facts.items() if name != "storage"):
        return ""
    made = hashlib.sha256(json.dumps([tensor.dtype, tensor.shape, sorted((name, str(facts[name])) for name in facts)]).encode())
    made.update(tensor.data)
    return made.hexdigest()


Difference = Tuple[Place, Optional[str], Optional[str]]
"""A place, then, now."""


def _values(before: Flat, now: Flat) -> "Iterator[Difference]":
    for place in [*before.values, *(place for place in now.values if place not in before.values)]:
        then, there = before.values.get(place), now.values.get(place)
        if then is None or there is None:
            side, other = (before, now) if there is None else (now, before)
            thing = next((place[:number] for number, step in enumerate(place) if step.startswith("about ")), None)
            # What is said of a thing that only one side has: the thing itself is in the answer.
            if thing is None or _has(other, thing) or not _has(side, thing):
                yield place, _text(then), _text(there)
        elif type(then) is not type(there) or _text(then) != _text(there):
            one, two = _text(then), _text(there)
            yield (place, one, two) if one != two else (place, _typed(then), _typed(there))


def _has(side: Flat, thing: Place) -> bool:
    """Whether a tensor or a value is there, or a storage, whose elements are those of tensors elsewhere."""
    place = (*thing, "about time") if thing and thing[-1].startswith("storage ") else thing
    return place in side.tensors or place in side.values


def _orders(before: Flat, now: Flat) -> "Iterator[Difference]":
    """Names that both sides have, in another order."""
    for place, steps in before.orders.items():
        common = set(steps).intersection(now.orders.get(place, ()))
        ones, others = ([step for step in each if step in common] for each in (steps, now.orders.get(place, ())))
        if ones != others:
            yield place, _listed(ones), _listed(others)


def _listed(steps: "list[str]") -> str:
    return ", ".join(repr(step.partition(" ")[2]) for step in steps)


def _bounded(rows: "list[Difference]") -> "list[list[str | None]]":
    """The first rows that can be shown, each as [name, then, now]."""
    made = []  # type: list[list[str | None]]
    left = _ROWS_TEXT
    for place, then, now in rows[:_ROWS]:
        if len(then or "") > _TEXT or len(now or "") > _TEXT:
            pairs = enumerate(zip(then or "", now or ""))  # noqa: B905
            start = max(0, next((at for at, (one, other) in pairs if one != other), min(len(then or ""), len(now or ""))) - 40)
            then, now = (None if text is None else "…" + text[start : start + _TEXT] for text in (then, now))
        row = [_name(place), *(None if text is None else _clean(text) for text in (then, now))]
        left -= sum(len(text or "") for text in row)
        if left < 0:
            break
        made.append(row)
    return made


def _name(place: Place) -> str:
    name = shown(place)
    return _clean(name if len(name) <= _TEXT else "…" + name[:_TEXT])


def _text(value: object) -> "str | None":
    """A value as text that no other value of its type has."""
    if value is None:
        return None
    if isinstance(value, int) and value.bit_length() > _BITS:
        return hex(value)
    return str(value) if isinstance(value, str) else repr(value)


def _typed(value: object) -> str:
    """As `_text`, where two values of two types would be equal."""
    return "%s (%s)" % (_text(value), "no text" if isinstance(value, Text) else type(value).__name__)


def _clean(text: str) -> str:
    """Without what JSON cannot carry: halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def main(path: str, to: str) -> None:
    with open(path, encoding="utf-8") as file:
        wanted = json.load(file)
    numpy = numpy_module()
    answers = [_apart(left, right, numpy) for left, right in wanted]
    with open(to, "w", encoding="utf-8") as out:
        json.dump(answers, out)


def _apart(left: str, right: str, numpy: Any) -> "dict[str, Any]":
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
                json.dump(compare(left, right, numpy), out)
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
