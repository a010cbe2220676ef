"""NumPy's arrays: their elements, and how pickles hold them."""

from .dtypes import KINDS, NUMPY, PARTS
from .standins import Array, Dtype, Text
from .tensor import Storage, Tensor, sized, strided
from .unreadable import UnreadableError


def array_of(one: "Array") -> "Tensor | None":
    """A stand-in of an array as a tensor, where its elements are plain numbers."""
    state = next((value for kind, value in one.__dict__["parts"] if kind == "state"), None)
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[2], Dtype) and isinstance(state[1], tuple)):
        return None
    if not isinstance(state[4], (bytes, bytearray)):
        return None
    code = code_of(state[2])
    return None if code is None else _exact(code, state[1], bool(state[3]), memoryview(bytes(state[4])))


def buffered(data: object, dtype: object, shape: object, order: object, *axes: object) -> "Array | None":
    """An array as the fifth protocol of pickles has it (`numpy._core.numeric._frombuffer`)."""
    if not isinstance(data, (bytes, bytearray)) or not isinstance(shape, tuple) or order not in ("C", "F") or any(axes):
        return None
    made = Array()
    made.__setstate__((1, shape, dtype, order == "F", data))
    return made


def scalar(dtype: object, data: object = None, *more: object) -> "Tensor | None":
    """A NumPy scalar as a tensor without dimensions."""
    code = code_of(dtype) if isinstance(dtype, Dtype) and isinstance(data, bytes) and not more else None
    found = None if code is None else _exact(code, (), False, memoryview(data))  # type: ignore[arg-type]
    return found and found.with_facts({"class": Text("numpy scalar")})


def code_of(one: "Dtype") -> "str | None":
    args, state = (), ()  # type: tuple[object, ...], tuple[object, ...]
    for kind, value in one.__dict__["parts"]:
        if kind == "args":
            args = value
        elif kind == "state" and isinstance(value, tuple):
            state = value
    order = state[1] if len(state) > 1 else "<"
    return "%s%s" % (order if order in ("<", ">") else "|", args[0]) if args else None


def _exact(code: str, shape: "tuple[int, ...]", fortran: bool, data: "memoryview") -> "Tensor | None":
    found = elements(code, shape, fortran, data)
    if found is not None and len(found.data) != len(data):
        raise UnreadableError("has an array of another size than its shape")
    return found


def elements(code: str, shape: "tuple[int, ...]", fortran: bool, data: "memoryview") -> "Tensor | None":
    """The first elements of `data`, of a NumPy dtype such as `<f4`; None for one that is no plain number."""
    dtype = NUMPY.get(code.lstrip("<>|="))
    if dtype is None:
        return None
    width = KINDS[dtype][0]
    count = sized(shape)
    if len(data) < count * width:
        raise UnreadableError("has an array that is cut off")
    data = data[: count * width]
    facts = {}  # type: dict[str, object]
    if code[0] == ">":
        facts["byte order"] = Text("big-endian")
        part = KINDS[PARTS.get(dtype, dtype)][0]
        swapped, whole = bytearray(len(data)), bytes(data)
        for number in range(part):
            swapped[number::part] = whole[part - 1 - number :: part]
        data = memoryview(bytes(swapped))
    if not fortran:
        return Tensor(dtype, shape, data, facts)
    facts["memory order"] = Text("Fortran")
    stride, step = [], 1
    for size in shape:
        stride.append(step)
        step *= size
    return strided(Storage(dtype, data), dtype, 0, shape, tuple(stride)).with_facts(facts)
