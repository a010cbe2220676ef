"""NumPy's arrays: .npy files (numpy/lib/format.py, NEP 1), and arrays in pickles."""

import ast
import io
import re
import struct
from typing import Any

from .dtypes import KINDS, NUMPY, PARTS
from .standins import Array, Dtype
from .tensor import Storage, Tensor, sized, strided
from .unreadable import UnreadableError

MAGIC = b"\x93NUMPY"
_HEADER = 1 << 20
"""Bytes of a header. NumPy itself reads 10,000 unless told otherwise."""


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
    return None if code is None else _exact(code, (), False, memoryview(data))  # type: ignore[arg-type]


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
    if code[0] == ">":
        part = KINDS[PARTS.get(dtype, dtype)][0]
        swapped, whole = bytearray(len(data)), bytes(data)
        for number in range(part):
            swapped[number::part] = whole[part - 1 - number :: part]
        data = memoryview(bytes(swapped))
    if not fortran or len(shape) < 2:
        return Tensor(dtype, shape, data)
    stride, step = [], 1
    for size in shape:
        stride.append(step)
        step *= size
    return strided(Storage(dtype, data), dtype, 0, shape, tuple(stride))


def npy(data: "memoryview") -> object:
    """An .npy file. Several that were written into one file, one after the other, are a list."""
    found = []
    while len(data):
        one, data = _one(data)
        found.append(one)
    return found[0] if len(found) == 1 else found


def _one(data: "memoryview") -> "tuple[object, memoryview]":
    """What the first array of a file is, and what comes after it."""
    if bytes(data[:6]) != MAGIC or len(data) < 12:
        raise UnreadableError("has bytes after its last array")
    version = data[6]
    width = 2 if version == 1 else 4
    (size,) = struct.unpack("<H" if width == 2 else "<I", data[8 : 8 + width])
    if size > _HEADER:
        raise UnreadableError("has a header that is too long")
    header: Any = ast.literal_eval(bytes(data[8 + width : 8 + width + size]).decode("utf-8" if version > 2 else "latin-1"))
    body = data[8 + width + size :]
    code, shape, fortran = header["descr"], tuple(header["shape"]), bool(header["fortran_order"])
    found = elements(code, shape, fortran, body) if isinstance(code, str) else None
    if found is not None:
        return found, body[len(found.data) :]
    if isinstance(code, str) and code.lstrip("<>|=") == "O":
        from .pickles import Reader

        file = io.BytesIO(bytes(body))
        one = Reader(file).load()
        return one, body[file.tell() :]
    about = {"descr": repr(code), "shape": shape, "fortran_order": fortran}
    # Where it is not known how long an element is, all that follows belongs to them.
    size = _itemsize(code)
    end = len(body) if size is None else size * sized(shape)
    if end > len(body):
        raise UnreadableError("has an array that is cut off")
    return {**about, "bytes": Tensor("bytes", (end,), body[:end])}, body[end:]


def _itemsize(descr: object) -> "int | None":
    """Bytes of an element that is no plain number; None where that cannot be said."""
    if isinstance(descr, str):
        found = re.fullmatch(r"[<>|=]([a-zA-Z])(\d+)(?:\[\w+\])?", descr)
        return int(found.group(2)) * (4 if found.group(1) == "U" else 1) if found else None
    if not isinstance(descr, list):
        return None
    total = 0
    for field in descr:
        size = _itemsize(field[1])
        if size is None:
            return None
        total += size * (sized(field[2]) if len(field) > 2 else 1)
    return total
