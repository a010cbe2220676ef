"""NumPy's arrays: .npy files (numpy/lib/format.py, NEP 1), and arrays in pickles."""

import ast
import io
import struct

from .dtypes import KINDS, NUMPY
from .pickles import Reader
from .standins import Array, Dtype
from .tensor import Storage, Tensor, strided
from .unreadable import UnreadableError


def array_of(one: "Array") -> object:
    """A stand-in of an array as a tensor, where its elements are plain numbers."""
    state = next((value for kind, value in one.__dict__["parts"] if kind == "state"), None)
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes) and isinstance(state[2], Dtype)):
        return None
    code = _code_of(state[2])
    if code is None or not isinstance(state[1], tuple):
        return None
    return elements(code, state[1], bool(state[3]), memoryview(state[4]))


def _code_of(one: "Dtype") -> "str | None":
    args, state = (), ()  # type: tuple[object, ...], tuple[object, ...]
    for kind, value in one.__dict__["parts"]:
        if kind == "args":
            args = value
        elif kind == "state" and isinstance(value, tuple):
            state = value
    order = state[1] if len(state) > 1 else "<"
    return "%s%s" % (order if order in ("<", ">") else "|", args[0]) if args else None


def elements(code: str, shape: "tuple[int, ...]", fortran: bool, data: "memoryview") -> "Tensor | None":
    """Elements of a NumPy dtype such as `<f4`; None for one that is no plain number."""
    dtype = NUMPY.get(code.lstrip("<>|="))
    if dtype is None:
        return None
    width = KINDS[dtype][0]
    count = 1
    for size in shape:
        count *= size
    if any(size < 0 for size in shape) or len(data) < count * width:
        raise UnreadableError("has an array that is cut off")
    if code[0] == ">":
        part = width // 2 if dtype[0] == "C" else width
        swapped = bytearray(len(data))
        for number in range(part):
            swapped[number::part] = bytes(data)[part - 1 - number :: part]
        data = memoryview(bytes(swapped))
    if not fortran or len(shape) < 2:
        return Tensor(dtype, shape, data[: count * width])
    stride, step = [], 1
    for size in shape:
        stride.append(step)
        step *= size
    return strided(Storage(dtype, data), dtype, 0, shape, tuple(stride))


def npy(data: "memoryview") -> object:
    version = data[6]
    width = 2 if version == 1 else 4
    (size,) = struct.unpack("<H" if width == 2 else "<I", data[8 : 8 + width])
    header = ast.literal_eval(bytes(data[8 + width : 8 + width + size]).decode("utf-8" if version > 2 else "latin-1"))
    body = data[8 + width + size :]
    code = header["descr"]
    found = elements(code, tuple(header["shape"]), bool(header["fortran_order"]), body) if isinstance(code, str) else None
    if found is not None:
        return found
    if isinstance(code, str) and code.lstrip("<>|=") == "O":
        return Reader(io.BytesIO(bytes(body))).load()
    return {"descr": repr(code), "shape": tuple(header["shape"]), "bytes": Tensor("U8", (len(body),), body)}
