"""NumPy's .npy files (numpy/lib/format.py, NEP 1)."""

import ast
import io
import re
import struct
from typing import Any

from .arrays import elements
from .older import stream
from .pickles import Reader
from .tensor import Tensor, sized
from .unreadable import UnreadableError

MAGIC = b"\x93NUMPY"
_HEADER = 1 << 20
"""Bytes of a header. NumPy itself reads 10,000 unless told otherwise."""


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
    if set(header) != {"descr", "shape", "fortran_order"}:
        raise UnreadableError("has an array that is not described as NumPy does")
    body = data[8 + width + size :]
    code, shape, fortran = header["descr"], tuple(header["shape"]), bool(header["fortran_order"])
    about = {"descr": repr(code), "shape": shape, "fortran_order": fortran}  # type: dict[str, object]
    found = elements(code, shape, fortran, body) if isinstance(code, str) else None
    if found is not None:
        return found, body[len(found.data) :]
    if isinstance(code, str) and code.lstrip("<>|=") == "O":
        file = io.BytesIO(bytes(body))
        about["objects"] = Reader(file, nested=stream).load()
        return about, body[file.tell() :]
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
