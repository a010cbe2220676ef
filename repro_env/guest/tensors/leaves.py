"""The tensors and other values of a file by their place."""

import struct
from typing import Iterable, Tuple

from .arrays import array_of
from .numbers import numbers
from .standins import Array, Lines, Number, Opaque, Order, Ordered, Parts, Row, Text, WithFacts
from .tensor import KINDS, Storage, Tensor, UnreadableError, read_view

DEEPEST = 200
_VALUES = 2000000
"""Values of one file that are read."""
_KEY = 10000
"""Characters of a key."""
_PLAIN = {str, int, bool, Text, Number}
Place = Tuple[str, ...]
"""Each step: its kind, a space, and its name. So `1` and `"1"` are two keys, and so are `a.b` and `b` in `a`.

A step of the kind `about` leads to a fact about a value: its class, the order of its keys.
"""


class Flat:
    """The tensors and values of a file, by place. A value is a number or a text, or a `Text` that describes an object."""

    def __init__(self, root: object) -> None:
        self.tensors = {}  # type: dict[Place, Tensor]
        self.values = {}  # type: dict[Place, object]
        self.orders = {}  # type: dict[Place, list[str]]
        """The steps below a place, or other names, in their order."""
        self._count = 0
        self._first_places = {}  # type: dict[int, tuple[object, Place]]
        """Each object with its first place, by its id. The object is kept so that no other object gets its id."""
        self._views = {}  # type: dict[int, list[Place]]
        """The places of tensors that are views of the same memory, by the id of the memory."""
        self._visit((), root, 0)
        for places in self._views.values():
            self._put_storage(places)
        if len(self.tensors) + len(self.values) != self._count:
            raise UnreadableError("has two values with the same name")

    def classes(self) -> "set[str]":
        """The classes of all objects."""
        return {str(value) for place, value in self.values.items() if place and place[-1] == "about class"}

    def names(self) -> "set[str]":
        """The keys at the top, the members of a zip or the tables of a database."""
        steps = {place[0] for places in (self.tensors, self.values) for place in places if place}
        return {step.partition(" ")[2] for step in steps if step.startswith(("key ", "file ", "array "))}

    def _put(self, place: Place, value: object) -> None:
        self._count += 1
        if self._count > _VALUES:
            raise UnreadableError("has more than %d values" % _VALUES)
        if isinstance(value, Tensor):
            self.tensors[place] = value
        else:
            self.values[place] = value

    def _visit(self, place: Place, value: object, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN or (kind is float and value == value):  # first, since most values are plain
            self._put(place, value)
            return
        if depth > DEEPEST:
            raise UnreadableError("is nested too deep")
        while isinstance(value, WithFacts):
            self._below(place, value.facts.items(), depth)
            value = value.value
        if isinstance(value, Array):
            value = array_of(value) or value
        if isinstance(value, Storage):  # no tensor is a view of it
            count = len(value.data) // KINDS[value.dtype][0]
            facts = {"class": Text("torch storage"), "device": value.device}  # type: dict[str, object]
            value = read_view(value, value.dtype, 0, (count,), (1,)).with_facts(facts)
        plain = _plain(value)
        if plain is not None:
            self._put(place, plain)
            if isinstance(plain, Tensor):
                self._below(place, (("about " + name, fact) for name, fact in plain.facts.items()), depth)
                if plain.origin is not None:
                    self._views.setdefault(id(plain.origin), []).append(place)
            return
        if isinstance(value, Order):
            self.orders[place] = value
            return
        if not isinstance(value, tuple):
            _, first = self._first_places.setdefault(id(value), (value, place))
            if first is not place:
                self._put(place, Text("the same object as %s" % (name_of(first) or "the top-level object")))
                return
        if isinstance(value, (set, frozenset)):
            items = ", ".join(sorted(_spell(item) for item in value))
            self._put(place, Text("%s{%s}" % ("" if value and isinstance(value, set) else type(value).__name__ + " ", items)))
            return
        if isinstance(value, (dict, list, tuple)) and not value and not isinstance(value, Parts):
            self._put(place, Text("{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else "()"))
        if isinstance(value, (Ordered, Opaque)):
            self._put((*place, "about class"), Text(value.name))
        self._below(place, _parts(value), depth, ordered=isinstance(value, (dict, Opaque)) and not isinstance(value, Row))

    def _below(self, place: Place, parts: "Iterable[tuple[str, object]]", depth: int, *, ordered: bool = False) -> None:
        steps = []
        for step, value in parts:
            self._visit((*place, step), value, depth + 1)
            if ordered:
                steps.append(step)
        if len(steps) > 1:
            self.orders[(*place, "about order")] = steps

    def _put_storage(self, places: "list[Place]") -> None:
        """Put which tensors share their storage, and the bytes of the storage that are in none of them."""
        if len(places) > 1:
            # By the shortest name: a key that is a path can differ between two runs.
            places.sort(key=lambda place: (len(name_of(place)), place))
        for place in places[1:]:
            self._put(
                (*place, "about storage"), Text("shares its storage with %s" % (name_of(places[0]) or "the top-level object"))
            )
        origin = self.tensors[places[0]].origin
        if isinstance(origin, memoryview):
            uncovered, at = bytearray(), 0
            ranges = sorted(covered for place in places for covered in self.tensors[place].covers)
            for begin, end in [*ranges, (len(origin), len(origin))]:
                uncovered += origin[at:begin]
                at = max(at, end)
            if uncovered:
                self._put((*places[0], "about rest of storage"), _plain(bytes(uncovered)))


def _parts(value: object) -> "Iterable[tuple[str, object]]":
    """The parts of a container or an object, by step."""
    if isinstance(value, Parts):
        yield from value.items()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield _key(key), item
        if isinstance(value, Ordered) and value.state is not None:
            yield from _state(value.state)
    elif isinstance(value, (list, tuple)):
        kind = "line" if isinstance(value, Lines) else "entry" if isinstance(value, list) else "member"
        for number, item in enumerate(value):
            yield "%s %d" % (kind, number), item
    elif isinstance(value, Opaque):
        yield from _arguments(value.__dict__["parts"])
    else:
        raise UnreadableError("contains a %s, which cannot be compared" % type(value).__name__)


def _arguments(parts: "list[tuple[str, object]]") -> "Iterable[tuple[str, object]]":
    """The arguments, items and state of an object, by step."""
    if len(parts) == 1 and parts[0][0] == "args" and len(parts[0][1]) == 1:  # type: ignore[arg-type]
        yield "only 0", parts[0][1][0]  # type: ignore[index]
        return
    for number, (kind, value) in enumerate(parts):
        if kind == "item":
            yield _key(value[0]), value[1]  # type: ignore[index]
        elif kind == "state":
            yield from _state(value)
        else:
            yield "part %s%s" % (kind, number or ""), value


def _state(state: object) -> "Iterable[tuple[str, object]]":
    """The attributes of an object, or any other state."""
    if isinstance(state, dict):
        for key, value in state.items():
            yield "state " + _key(key).partition(" ")[2], value
    else:
        yield "about state", state


def name_of(place: Place) -> str:
    """A place as a dotted name, with facts in parentheses; a name that ends like a fact is in quotes."""
    name = ""
    for step in place:
        kind, _, part = step.partition(" ")
        if kind == "about":
            name += " " * bool(name) + "(%s)" % part
        elif kind != "only":
            part = part[: -len(".npy")] if kind == "array" else part
            name += "." * bool(name) + ('"%s"' % part if part.endswith(")") else part)
    return name


def _plain(value: object) -> object:
    """A value without parts, as it is compared; None for a value with parts."""
    if isinstance(value, (Tensor, bool, int, str)):
        return value
    if value is None:
        return Text("None")
    if isinstance(value, float):
        # Python writes each NaN as nan; the bits can differ.
        bits = struct.pack(">d", value).hex()
        return Text("nan 0x" + bits) if value != value and bits != "7ff8000000000000" else value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Tensor("bytearray" if isinstance(value, bytearray) else "bytes", (len(value),), memoryview(value))
    if isinstance(value, complex):
        return Text("complex(%s, %s)" % (_plain(value.real), _plain(value.imag)))
    if callable(value):
        return Text("%s %s" % ("class" if isinstance(value, type) else "function", getattr(value, "name", "?")))
    return None


def _key(key: object) -> str:
    """A key as a step of a place."""
    if isinstance(key, str) and not isinstance(key, Text):
        return "key " + key
    return type(key).__name__ + " " + _spell(key)


def _spell(value: object) -> str:
    """A text that differs for each value. Raises `UnreadableError` if it would be very long."""
    budget = [_KEY]

    def spell(value: object, depth: int) -> str:
        budget[0] -= 1
        if isinstance(value, Array):
            value = array_of(value) or value
        if isinstance(value, (str, bytes, Tensor)):
            budget[0] -= len(value.data if isinstance(value, Tensor) else value)
        if budget[0] < 0 or depth > DEEPEST:
            raise UnreadableError("has a very large key or member of a set")
        if isinstance(value, Tensor):
            if value.shape == () and value.dtype == "I64":
                return str(numbers(value.dtype, bytes(value.data))[0])
            return "%s%s(%s)" % (value.dtype, list(value.shape), bytes(value.data).hex())
        if isinstance(value, (list, tuple)):
            return "(%s)" % ", ".join(spell(item, depth + 1) for item in value)
        if isinstance(value, (set, frozenset)):
            return "{%s}" % ", ".join(sorted(spell(item, depth + 1) for item in value))
        if isinstance(value, dict):
            return "{%s}" % ", ".join("%s: %s" % (spell(key, depth + 1), spell(value[key], depth + 1)) for key in value)
        if isinstance(value, Opaque):
            parts = ("%s=%s" % (kind, spell(part, depth + 1)) for kind, part in value.__dict__["parts"])
            return "%s(%s)" % (value.name, ", ".join(parts))
        if isinstance(value, bytes) or (isinstance(value, str) and not isinstance(value, Text)):
            return repr(value)
        plain = _plain(value)
        if plain is None or isinstance(plain, Tensor):
            raise UnreadableError("has a %s as a key or in a set, which cannot be compared" % type(value).__name__)
        return str(plain)

    return spell(value, 0)
