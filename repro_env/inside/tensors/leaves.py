"""What is in a file, flat: tensors and other values by where they are."""

import re
import struct
from typing import Dict, Tuple

from .arrays import array_of
from .dtypes import width
from .libraries import CATBOOST, catboost
from .numbers import numbers
from .standins import Array, Opaque, Ordered, Text
from .tensor import Storage, Tensor
from .unreadable import UnreadableError

DEEPEST = 200
_LEAVES = 2000000
"""Values of one file that are looked at."""
_KEY = 10000
"""Characters of a key."""
Place = Tuple[str, ...]
"""Each step: what kind of step it is, a space, and its name. So `1` and `"1"` are two keys, and so are `a.b` and `b` in `a`."""


def flat(root: object) -> "tuple[Dict[Place, Tensor], Dict[Place, object]]":
    """(tensors, values) by place. A value is a number or a text, or a `Text` that says what it is."""
    tensors = {}  # type: Dict[Place, Tensor]
    values = {}  # type: Dict[Place, object]
    above = set()  # type: set[int]
    left = [_LEAVES]

    def put(place: Place, value: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise UnreadableError("has more values than are looked at")
        if place in values or place in tensors:
            raise UnreadableError("has two values of one name: %s" % shown(place))
        if isinstance(value, Tensor):
            tensors[place] = value
        else:
            values[place] = value

    def visit(place: Place, one: object, depth: int) -> None:
        if depth > DEEPEST:
            raise UnreadableError("is nested too deep")
        if isinstance(one, Array):
            found = array_of(one)
            if found is not None:
                for _, kind in one.__dict__["parts"][:-1]:  # a class of someone's own
                    visit((*place, "class ()"), kind, depth + 1)
                one = found
        if isinstance(one, Storage):
            size = width(one.dtype)
            one = Tensor(one.dtype, (len(one.data) // size,), one.data[: len(one.data) // size * size])
        if isinstance(one, (bytes, bytearray)) and one[:4] == CATBOOST:
            one = catboost(memoryview(one))
        plain = _plain(one)
        if plain is not None:
            put(place, plain)
            return
        if id(one) in above:
            put(place, Text("(itself)"))
            return
        above.add(id(one))
        if isinstance(one, dict):
            if not one:
                put(place, Text("{}"))
            for key, value in one.items():
                visit((*place, _key(key)), value, depth + 1)
            if isinstance(one, Ordered) and one.state is not None:
                visit((*place, "state ()"), one.state, depth + 1)
        elif isinstance(one, (list, tuple)):
            kind = "entry" if isinstance(one, list) else "member"
            if not one:
                put(place, Text("[]" if isinstance(one, list) else "()"))
            for number, value in enumerate(one):
                visit((*place, "%s %d" % (kind, number)), value, depth + 1)
        elif isinstance(one, (set, frozenset)):
            held = ", ".join(sorted(_spelled(value) for value in one))
            put(place, Text("%s{%s}" % ("" if one and isinstance(one, set) else type(one).__name__ + " ", held)))
        elif isinstance(one, Opaque):
            put((*place, "class ()"), Text(one.name))
            count = {}  # type: Dict[str, int]
            for kind, value in one.__dict__["parts"]:
                if kind == "item":
                    visit((*place, _key(value[0])), value[1], depth + 1)
                elif kind == "state" and isinstance(value, dict):
                    for key in value:
                        visit((*place, "state " + _key(key).partition(" ")[2]), value[key], depth + 1)
                else:
                    number = count.get(kind, 0)
                    count[kind] = number + 1
                    visit((*place, "part %s%s" % (kind, number or "")), value, depth + 1)
        else:
            raise UnreadableError("holds a %s at %s, which is not read here" % (type(one).__name__, shown(place) or "its top"))
        above.discard(id(one))

    visit((), root, 0)
    return tensors, values


def shown(place: Place) -> str:
    """As a dotted name; what an object is made of stands in parentheses."""
    made = ""
    for step in place:
        kind, _, name = step.partition(" ")
        made += name if kind == "class" or (name == "()" and kind == "state") else "." * bool(made) + name
    return made


def _plain(one: object) -> object:
    """A value that has no parts, as it is kept; None for one that has."""
    if isinstance(one, (Tensor, bool, int, str)):
        return one
    if one is None:
        return Text("None")
    if isinstance(one, float):
        # Any NaN is written as nan; which one it is can differ.
        return Text("nan 0x%016x" % struct.unpack("<Q", struct.pack("<d", one))[0]) if one != one and not _usual(one) else one
    if isinstance(one, (bytes, bytearray, memoryview)):
        data = memoryview(bytes(one))
        return Tensor("bytearray" if isinstance(one, bytearray) else "bytes", (len(data),), data)
    if isinstance(one, (complex, range, slice)) or one is Ellipsis:
        return Text(repr(one))
    if isinstance(one, type):
        return Text("class " + str(getattr(one, "name", one.__name__)))
    if callable(one) and not isinstance(one, Opaque):
        return Text("function " + str(getattr(one, "__name__", "?")))
    return None


def _usual(one: float) -> bool:
    return struct.pack("<d", one) == b"\0\0\0\0\0\0\xf8\x7f"


def _key(one: object) -> str:
    """A key as a step of a place."""
    if isinstance(one, str) and not isinstance(one, Text):
        return "key " + one
    return type(one).__name__ + " " + _spelled(one)


def _spelled(one: object) -> str:
    """What no other object is written as. Raises `UnreadableError` for one that would be very long."""
    left = [_KEY]

    def of(one: object, depth: int) -> str:
        left[0] -= 1
        if left[0] < 0 or depth > DEEPEST:
            raise UnreadableError("has a key, or a member of a set, that is very large")
        if isinstance(one, Array):
            one = array_of(one) or one
        if isinstance(one, Tensor):
            left[0] -= len(one.data)
            if one.shape == () and one.dtype == "I64":
                return str(numbers(one.dtype, bytes(one.data))[0])
            return "%s%s(%s)" % (one.dtype, list(one.shape), bytes(one.data).hex())
        if isinstance(one, str) and not isinstance(one, Text):
            left[0] -= len(one)
            return repr(one) if depth or _odd(one) else one
        if isinstance(one, (list, tuple)):
            return "(%s)" % ", ".join(of(value, depth + 1) for value in one)
        if isinstance(one, (set, frozenset)):
            return "{%s}" % ", ".join(sorted(of(value, depth + 1) for value in one))
        if isinstance(one, dict):
            return "{%s}" % ", ".join("%s: %s" % (of(key, depth + 1), of(one[key], depth + 1)) for key in one)
        if isinstance(one, Opaque):
            parts = ("%s=%s" % (kind, of(value, depth + 1)) for kind, value in one.__dict__["parts"])
            return "%s(%s)" % (one.name, ", ".join(parts))
        if isinstance(one, bytes):
            left[0] -= len(one)
            return repr(one)
        plain = _plain(one)
        if plain is None or isinstance(plain, Tensor):
            raise UnreadableError("has a %s as a key, or in a set, which is not read here" % type(one).__name__)
        return str(plain)

    return of(one, 0)


def _odd(text: str) -> bool:
    """Whether a text in a set could be taken for something else."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./ -]*", text) is None or text in ("None", "True", "False", "nan", "inf")
