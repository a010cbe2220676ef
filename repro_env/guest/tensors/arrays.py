"""NumPy's arrays: their elements, and their form in pickles."""

import re

from .standins import Array, Dtype, Text
from .tensor import KINDS, NUMPY, PARTS, Storage, Tensor, UnreadableError, read_view, size_of


def array_of(array: "Array") -> "Tensor | None":
    """The tensor of a pickled array; None if its elements are not plain numbers."""
    parts = array.__dict__["parts"]
    state = next((value for kind, value in parts if kind == "state"), None)
    if not isinstance(state, tuple) or len(state) != 5:
        return None
    _, shape, dtype, fortran, data = state
    if not (isinstance(shape, tuple) and isinstance(dtype, Dtype) and isinstance(data, (bytes, bytearray))):
        return None
    tensor = _exact(code_of(dtype), shape, bool(fortran), memoryview(data))
    if tensor is None:
        return None
    tensor = tensor.with_facts({"class": parts[0][1][0]} if len(parts) > 1 else {})  # a subclass of ndarray
    tensor.origin = array
    return tensor


def from_buffer(data: object, dtype: object, shape: object, order: object, *axes: object) -> "Array | None":
    """An array as protocol 5 of pickle writes it (`numpy._core.numeric._frombuffer`)."""
    if not isinstance(data, (bytes, bytearray)) or not isinstance(shape, tuple) or order not in ("C", "F") or any(axes):
        return None
    array = Array()
    array.__setstate__((1, shape, dtype, order == "F", data))
    return array


def scalar(dtype: object, data: object) -> "Tensor | None":
    """A NumPy scalar as a tensor without dimensions; None if it is not a plain number."""
    if not isinstance(dtype, Dtype) or not isinstance(data, bytes):
        return None
    tensor = _exact(code_of(dtype), (), False, memoryview(data))
    return tensor and tensor.with_facts({"class": Text("numpy scalar")})


def code_of(dtype: "Dtype") -> str:
    """NumPy's code of a pickled dtype, such as `<f4`; empty if unknown."""
    args, state = (), ()  # type: tuple[object, ...], tuple[object, ...]
    for kind, value in dtype.__dict__["parts"]:
        if kind == "args":
            args = value
        elif kind == "state" and isinstance(value, tuple):
            state = value
    order = state[1] if len(state) > 1 else "<"
    return "%s%s" % (order if order in ("<", ">") else "|", args[0]) if args else ""


def _exact(code: str, shape: "tuple[int, ...]", fortran: bool, data: "memoryview") -> "Tensor | None":
    tensor = elements(code, shape, fortran, data)
    if tensor is not None and len(tensor.data) != len(data):
        raise UnreadableError("has an array whose size differs from its shape")
    return tensor


def elements(code: str, shape: "tuple[int, ...]", fortran: bool, data: "memoryview") -> "Tensor | None":
    """The first elements of `data`, of a NumPy dtype such as `<f4`; None if they are not plain numbers."""
    dtype = NUMPY.get(code.lstrip("<>|="))
    if dtype is None:
        return None
    count = size_of(shape)
    if len(data) < count * KINDS[dtype][0]:
        raise UnreadableError("has an array that is cut off")
    data = data[: count * KINDS[dtype][0]]
    facts = {}  # type: dict[str, object]
    if code[0] == ">":
        facts["byte order"] = Text("big-endian")
        width = KINDS[PARTS.get(dtype, dtype)][0]
        swapped, original = bytearray(len(data)), bytes(data)
        for byte in range(width):
            swapped[byte::width] = original[width - 1 - byte :: width]
        data = memoryview(bytes(swapped))
    if not fortran:
        return Tensor(dtype, shape, data, facts)
    facts["memory order"] = Text("Fortran")
    stride, step = [], 1
    for size in shape:
        stride.append(step)
        step *= size
    return read_view(Storage(dtype, data, data), dtype, 0, shape, tuple(stride)).with_facts(facts)


def itemsize(descr: object) -> "int | None":
    """Bytes of an element that is not a plain number; None if unknown."""
    if isinstance(descr, str):
        match = re.fullmatch(r"[<>|=]([a-zA-Z])(\d+)(?:\[\w+\])?", descr)
        return int(match.group(2)) * (4 if match.group(1) == "U" else 1) if match else None
    if not isinstance(descr, list):
        return None
    total = 0
    for field in descr:
        size = itemsize(field[1])
        if size is None:
            return None
        total += size * (size_of(field[2]) if len(field) > 2 else 1)
    return total
