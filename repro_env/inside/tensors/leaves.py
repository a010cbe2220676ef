"""What is in a file, flat: tensors and other values by dotted name."""

from .arrays import array_of
from .dtypes import KINDS
from .older import DEEPEST
from .standins import Array, Opaque
from .tensor import Storage, Tensor
from .unreadable import UnreadableError

_LEAVES = 2000000
"""Values of one file that are looked at."""


def flat(root: object) -> "tuple[dict[str, Tensor], dict[str, object]]":
    """(tensors, values) by dotted name. A value is a number, or text that says what it is."""
    tensors = {}  # type: dict[str, Tensor]
    values = {}  # type: dict[str, object]
    above = set()  # type: set[int]
    left = [_LEAVES]

    def put(name: str, value: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise UnreadableError("has more values than are looked at")
        while name in values or name in tensors:
            name += "'"
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            values[name] = value

    def visit(name: str, one: object, depth: int) -> None:
        if depth > DEEPEST:
            raise UnreadableError("is nested too deep")
        if isinstance(one, Array):
            found = array_of(one)
            one = one if found is None else found
        if isinstance(one, Storage):
            one = Tensor(one.dtype, (len(one.data) // KINDS[one.dtype][0],), one.data)
        if isinstance(one, Tensor) or one is None or isinstance(one, (bool, int, float, str)):
            put(name, one if isinstance(one, (Tensor, bool, int, float, str)) else "None")
            return
        if isinstance(one, (bytes, bytearray, memoryview)):
            data = memoryview(bytes(one))
            put(name, Tensor("U8", (len(data),), data))
            return
        if isinstance(one, (complex, range, slice)) or one is Ellipsis:
            put(name, repr(one))
            return
        if isinstance(one, type):
            put(name, "class " + getattr(one, "name", one.__name__))
            return
        if callable(one) and not isinstance(one, Opaque):
            put(name, "function " + getattr(one, "__name__", "?"))
            return
        if id(one) in above:
            put(name, "(itself)")
            return
        above.add(id(one))
        below = name + "." if name else ""
        if isinstance(one, dict):
            if not one:
                put(name, "{}")
            for key, value in one.items():
                visit(below + _key(key), value, depth + 1)
        elif isinstance(one, (list, tuple)):
            if not one:
                put(name, "[]")
            for number, value in enumerate(one):
                visit(below + str(number), value, depth + 1)
        elif isinstance(one, (set, frozenset)):
            put(name, "{%s}" % ", ".join(sorted(_key(value) for value in one)))
        elif isinstance(one, Opaque):
            put(name + "()", one.name)
            count = {}  # type: dict[str, int]
            for kind, value in one.__dict__["parts"]:
                if kind == "item":
                    visit(below + _key(value[0]), value[1], depth + 1)
                elif kind == "state" and isinstance(value, dict):
                    for key in value:
                        visit(below + _key(key), value[key], depth + 1)
                else:
                    number = count.get(kind, 0)
                    count[kind] = number + 1
                    visit(below + "%s%s" % (kind, number or ""), value, depth + 1)
        else:
            put(name, "%s object" % type(one).__name__)
        above.discard(id(one))

    visit("", root, 0)
    return tensors, values


def _key(one: object) -> str:
    if isinstance(one, str):
        return one
    if isinstance(one, tuple):
        return "(%s)" % ", ".join(_key(value) for value in one)
    if isinstance(one, (bool, int, float, bytes)) or one is None:
        return repr(one)
    return getattr(one, "name", type(one).__name__) + "()" if isinstance(one, (Opaque, type)) else type(one).__name__
