"""NumPy's .npy files (numpy/lib/format.py, NEP 1)."""

import ast
import io
import struct
from typing import Any

from .arrays import elements, itemsize
from .pickles import Reader
from .tensor import Tensor, UnreadableError, size_of

MAGIC = b"\x93NUMPY"
_HEADER = 1 << 20
"""Bytes of a header. The default limit of NumPy is 10,000."""


def read_npy(data: "memoryview") -> object:
    """The array of an .npy file; a list if several were written into it."""
    arrays = []
    while len(data):
        array, data = _read_first(data)
        arrays.append(array)
    return arrays[0] if len(arrays) == 1 else arrays


def _read_first(data: "memoryview") -> "tuple[object, memoryview]":
    """The first array of a file, and the bytes after it."""
    if bytes(data[:6]) != MAGIC or len(data) < 12:
        raise UnreadableError("has bytes after its last array")
    version = data[6]
    width = 2 if version == 1 else 4
    (size,) = struct.unpack("<H" if width == 2 else "<I", data[8 : 8 + width])
    if size > _HEADER:
        raise UnreadableError("has a header that is too long")
    header: Any = ast.literal_eval(bytes(data[8 + width : 8 + width + size]).decode("utf-8" if version > 2 else "latin-1"))
    if set(header) != {"descr", "shape", "fortran_order"}:
        raise UnreadableError("has an array with an unknown header")
    body = data[8 + width + size :]
    code, shape, fortran = header["descr"], tuple(header["shape"]), bool(header["fortran_order"])
    about = {"descr": repr(code), "shape": shape, "fortran_order": fortran}  # type: dict[str, object]
    array = elements(code, shape, fortran, body) if isinstance(code, str) else None
    if array is not None:
        return array, body[len(array.data) :]
    if isinstance(code, str) and code.lstrip("<>|=") == "O":
        file = io.BytesIO(bytes(body))
        about["objects"] = Reader(file).load()
        return about, body[file.tell() :]
    # If the size of an element is unknown, all bytes that follow belong to the array.
    size = itemsize(code)
    end = len(body) if size is None else size * size_of(shape)
    if end > len(body):
        raise UnreadableError("has an array that is cut off")
    return {**about, "bytes": Tensor("bytes", (end,), body[:end])}, body[end:]
