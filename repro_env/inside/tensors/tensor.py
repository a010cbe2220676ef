"""A tensor as its bytes, whatever file it was in."""

import struct
from typing import Any

from .dtypes import KINDS
from .unreadable import UnreadableError


class Tensor:
    """Elements in C order, little-endian."""

    __slots__ = ("data", "dtype", "shape")

    def __init__(self, dtype: str, shape: "tuple[int, ...]", data: "memoryview") -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data


class Storage:
    """A flat piece of memory in a file that torch.save wrote."""

    __slots__ = ("data", "dtype")

    def __init__(self, dtype: str, data: "memoryview") -> None:
        self.dtype = dtype
        self.data = data


def strided(storage: Storage, dtype: str, offset: int, shape: "tuple[int, ...]", stride: "tuple[int, ...]") -> Tensor:
    """The elements of a view of a storage, in C order. Raises `UnreadableError` for one that leaves its storage."""
    width = KINDS[dtype][0]
    count = 1
    for size in shape:
        count *= size
    if any(size < 0 for size in shape) or any(step < 0 for step in stride) or offset < 0 or len(shape) != len(stride):
        raise UnreadableError("has a tensor with a negative size")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride)) if count else offset  # noqa: B905
    if count and (last + 1) * width > len(storage.data):
        raise UnreadableError("has a tensor that is larger than its storage")
    wanted, dense = 1, True
    for size, step in zip(reversed(shape), reversed(stride)):  # noqa: B905
        if size != 1 and step != wanted:
            dense = False
        wanted *= size
    if dense or not count:
        return Tensor(dtype, shape, storage.data[offset * width : (offset + count) * width])
    if count > len(storage.data) * 64:
        raise UnreadableError("has a tensor that is far larger than its storage")
    unit = min(width, 8)
    if width > unit:  # two numbers an element
        shape, stride, offset = (
            (*shape, width // unit),
            (*(step * (width // unit) for step in stride), 1),
            offset * (width // unit),
        )
    code: Any = {1: "B", 2: "H", 4: "I", 8: "Q"}[unit]
    cells: Any = storage.data[: len(storage.data) // unit * unit].cast(code)
    made = bytearray()
    starts = [offset]
    for size, step in zip(shape[:-1], stride[:-1]):  # noqa: B905
        starts = [start + number * step for start in starts for number in range(size)]
    size, step = shape[-1], stride[-1]
    for start in starts:
        row = cells[start : start + (size - 1) * step + 1 : step] if step else [cells[start]] * size
        made += row.tobytes() if isinstance(row, memoryview) else b"".join(struct.pack("<Q", one)[:unit] for one in row)
    if width > unit:
        shape = shape[:-1]
    return Tensor(dtype, shape, memoryview(bytes(made)))
