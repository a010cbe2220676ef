"""What is in a file, flat: tensors and other values by where they are."""

import re
import struct
from typing import Iterable, Tuple

from .arrays import array_of
from .dtypes import width
from .numbers import numbers
from .standins import Array, Known, Lines, Opaque, Order, Ordered, Parts, Row, Text
from .tensor import Storage, Tensor
from .unreadable import UnreadableError

DEEPEST = 200
_LEAVES = 2000000
"""Values of one file that are looked at."""
_KEY = 10000
"""Characters of a key."""
Place = Tuple[str, ...]
"""Each step: what kind of step it is, a space, and its name. So `1` and `"1"` are two keys, and so are `a.b` and `b` in `a`.

A step of the kind `about` leads to what is said of a thing: its class, the order of its keys.
"""


class Flat:
    """What is in a file, by place. A value is a number or a text, or a `Text` that says what it is."""

    def __init__(self, root: object) -> None:
        self.tensors = {}  # type: dict[Place, Tensor]
        self.values = {}  # type: dict[Place, object]
        self.orders = {}  # type: dict[Place, list[str]]
        """Steps below a place, or other names, in their order."""
        self.classes = set()  # type: set[str]
        self.names = set()  # type: set[str]
        """Keys at the top, members of a zip, tables."""
        self._left = _LEAVES
        self._seen = {}  # type: dict[int, tuple[object, Place]]
        """By its number in this process: a thing, and its first place."""
        self._origins = {}  # type: dict[int, list[Place]]
        """By the number of what tensors are views of: their places."""
        self._visit((), root, 0)
        for places in self._origins.values():
            # By the shortest name: a key that is a path may be another in each run.
            self._put_storage(sorted(places, key=lambda place: (len(shown(place)), place)))

    def _put(self, place: Place, value: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnreadableError("has more values than are looked at")
        if place in self.values or place in self.tensors:
            raise UnreadableError("has two values of one name: %s" % shown(place))
        if isinstance(value, Tensor):
            self.tensors[place] = value
        else:
            self.values[place] = value
            if place[-1:] == ("about class",):
                self.classes.add(str(value))

    def _visit(self, place: Place, one: object, depth: int) -> None:
        if depth > DEEPEST:
            raise UnreadableError("is nested too deep")
        if len(place) == 1 and place[0].partition(" ")[0] in ("key", "file", "array"):
            self.names.add(place[0].partition(" ")[2])
        while isinstance(one, Known):
            self._below(place, one.parts.items(), depth, ordered=False)
            one = one.value
        if isinstance(one, Array):
            found = array_of(one)
            if found is not None:
                kinds = one.__dict__["parts"][:-1]  # a class of someone's own
                found = found.with_facts({"class": kinds[0][1][0]} if kinds else {})
                found.origin = one
                one = found
        if isinstance(one, Storage):
            one = _elements(one)
        plain = _plain(one)
        if plain is not None:
            self._put(place, plain)
            if isinstance(plain, Tensor):
                self._below(place, (("about " + name, fact) for name, fact in plain.facts.items()), depth, ordered=False)
                if plain.origin is not None:
                    self._origins.setdefault(id(plain.origin), []).append(place)
            return
        if not isinstance(one, tuple):
            _, first = self._seen.setdefault(id(one), (one, place))
            if first is not place:
                self._put(place, Text("the same object as %s" % (shown(first) or "the whole")))
                return
        if isinstance(one, Order):
            self.orders[place] = list(one)
        elif isinstance(one, Parts):
            self._below(place, one.items(), depth)
        elif isinstance(one, dict):
            if not one:
                self._put(place, Text("{}"))
            self._below(place, ((_key(key), value) for key, value in one.items()), depth, ordered=not isinstance(one, Row))
            if isinstance(one, Ordered):
                self._put((*place, "about class"), Text(one.name))
                self._below(place, () if one.state is None else _state(one.state), depth, ordered=False)
        elif isinstance(one, (list, tuple)):
            kind = "line" if isinstance(one, Lines) else "entry" if isinstance(one, list) else "member"
            if not one:
                self._put(place, Text("[]" if isinstance(one, list) else "()"))
            self._below(place, (("%s %d" % (kind, number), value) for number, value in enumerate(one)), depth, ordered=False)
        elif isinstance(one, (set, frozenset)):
            held = ", ".join(sorted(_spelled(value) for value in one))
            self._put(place, Text("%s{%s}" % ("" if one and isinstance(one, set) else type(one).__name__ + " ", held)))
        elif isinstance(one, Opaque):
            self._put((*place, "about class"), Text(one.name))
            self._below(place, _parts(one), depth)
        else:
            raise UnreadableError("holds a %s at %s, which is not read here" % (type(one).__name__, shown(place) or "its top"))

    def _below(self, place: Place, parts: "Iterable[tuple[str, object]]", depth: int, *, ordered: bool = True) -> None:
        steps = []
        for step, value in parts:
            self._visit((*place, step), value, depth + 1)
            if ordered:
                steps.append(step)
        if len(steps) > 1:
            self.orders[(*place, "about order")] = steps

    def _put_storage(self, places: "list[Place]") -> None:
        """Which tensors share their elements, and the elements of their storage that none of them has."""
        for place in places[1:]:
            self._put((*place, "about storage"), Text("shares its storage with %s" % (shown(places[0]) or "the whole")))
        origin = self.tensors[places[0]].origin
        if isinstance(origin, memoryview):
            rest = _gaps(origin, [span for place in places for span in self.tensors[place].covers])
            if rest:
                self._put((*places[0], "about rest of storage"), _bytes(rest))


def _gaps(origin: "memoryview", spans: "list[tuple[int, int]]") -> bytes:
    """The bytes of a storage that are in none of so many pieces of it."""
    found, at = [], 0
    for begin, end in [*sorted(spans), (len(origin), len(origin))]:
        if begin > at:
            found.append(origin[at:begin])
        at = max(at, end)
    return b"".join(found)


def _elements(storage: Storage) -> Tensor:
    """A storage that no tensor is a view of."""
    size = width(storage.dtype)
    count = len(storage.data) // size
    facts = {"class": Text("torch storage"), "device": storage.device}  # type: dict[str, object]
    made = Tensor(storage.dtype, (count,), storage.data[: count * size], facts)
    made.origin, made.covers = storage.origin, [(storage.start, storage.start + count * size)]
    return made


def _parts(one: Opaque) -> "Iterable[tuple[str, object]]":
    """What an object was made of, by steps."""
    parts = one.__dict__["parts"]
    if len(parts) == 1 and parts[0][0] == "args" and len(parts[0][1]) == 1:
        yield "only 0", parts[0][1][0]
        return
    count = {}  # type: dict[str, int]
    for kind, value in parts:
        if kind == "item":
            yield _key(value[0]), value[1]
        elif kind == "state":
            yield from _state(value)
        else:
            number = count.get(kind, 0)
            count[kind] = number + 1
            yield "part %s%s" % (kind, number or ""), value


def _state(state: object) -> "Iterable[tuple[str, object]]":
    """The attributes of an object, or what else it keeps."""
    if not isinstance(state, dict):
        yield "about state", state
        return
    for key in state:
        yield "state " + _key(key).partition(" ")[2], state[key]


def shown(place: Place) -> str:
    """As a dotted name. What is said of a thing stands in parentheses."""
    made = ""
    for step in place:
        kind, _, name = step.partition(" ")
        if kind == "about":
            made += " " * bool(made) + "(%s)" % name
        elif kind != "only":
            made += "." * bool(made) + (name[: -len(".npy")] if kind == "array" else name)
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
        return _bytes(one)
    if isinstance(one, complex):
        return Text("complex(%s, %s)" % (_plain(one.real), _plain(one.imag)))
    if isinstance(one, (range, slice)) or one is Ellipsis:
        return Text(repr(one))
    if isinstance(one, type):
        return Text("class " + str(getattr(one, "name", one.__name__)))
    if callable(one) and not isinstance(one, Opaque):
        return Text("function " + str(getattr(one, "__name__", "?")))
    return None


def _bytes(data: "bytes | bytearray | memoryview") -> Tensor:
    return Tensor("bytearray" if isinstance(data, bytearray) else "bytes", (len(data),), memoryview(bytes(data)))


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
