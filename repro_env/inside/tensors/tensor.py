"""A tensor as its bytes, whatever file it was in."""

import itertools
import struct
from typing import Any, Sequence

from .dtypes import KINDS, PARTS
from .unreadable import UnreadableError

_WIDER = 64
_SMALL = 256 << 20
"""Bytes. A view that repeats its storage more than `_WIDER` times and is larger than this is not spelled out."""
_SPANS = 1 << 20
"""Of a view with gaps and more elements than this, it is not told which elements of its storage it has."""


class Tensor:
    """Elements in C order, little-endian. `facts`: what else a file says of them, by name."""

    __slots__ = ("covers", "data", "dtype", "facts", "origin", "shape")

    def __init__(
        self, dtype: str, shape: "tuple[int, ...]", data: "memoryview", facts: "dict[str, object] | None" = None
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data
        self.facts = facts or {}
        self.origin = None  # type: object
        """The memory or object that it is a view of: tensors with the same origin share their elements."""
        self.covers = []  # type: list[tuple[int, int]]
        """Bytes of its origin that are its elements: begin, end."""

    def with_facts(self, facts: "dict[str, object]") -> "Tensor":
        """The same elements, of which more is said."""
        made = Tensor(self.dtype, self.shape, self.data, {**self.facts, **facts})
        made.origin, made.covers = self.origin, self.covers
        return made


class Storage:
    """A flat piece of memory in a file that torch.save wrote: `data`, which begins `start` bytes into `origin`."""

    __slots__ = ("data", "device", "dtype", "origin", "start")

    def __init__(
        self, dtype: str, data: "memoryview", origin: "memoryview | None" = None, start: int = 0, device: str = "cpu"
    ) -> None:
        self.dtype = dtype
        self.data = data
        self.origin = data if origin is None else origin
        self.start = start
        self.device = device


def sized(shape: "tuple[int, ...]") -> int:
    """Elements of a shape. Raises `UnreadableError` for what is no shape."""
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise UnreadableError("has a tensor with a size that is none")
        count *= size
    return count


def strided(storage: Storage, dtype: str, offset: int, shape: "tuple[int, ...]", stride: "tuple[int, ...]") -> Tensor:
    """The elements of a view of a storage, in C order. Raises `UnreadableError` for one that leaves its storage."""
    width = KINDS[dtype][0]
    count = sized(shape)
    if any(type(step) is not int or step < 0 for step in (*stride, offset)) or len(shape) != len(stride):
        raise UnreadableError("has a tensor with a negative stride")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride)) if count else offset  # noqa: B905
    if count and (last + 1) * width > len(storage.data):
        raise UnreadableError("has a tensor that is larger than its storage")
    if contiguous(shape, stride):
        made = Tensor(dtype, shape, storage.data[offset * width : (offset + count) * width])
    elif count * width > max(len(storage.data) * _WIDER, _SMALL):
        raise UnreadableError("has a tensor that is far larger than its storage")
    else:
        made = Tensor(dtype, shape, _spelled(storage.data, width, offset, shape, stride))
    made.origin = storage.origin
    order = sorted(range(len(shape)), key=lambda axis: (-stride[axis], -shape[axis]))
    if contiguous([shape[axis] for axis in order], [stride[axis] for axis in order]):
        made.covers = [(storage.start + offset * width, storage.start + (offset + count) * width)]
    elif count <= _SPANS:
        axes = [range(0, size * step, step) if step else [0] for size, step in zip(shape, stride)]  # noqa: B905
        starts = (storage.start + (offset + sum(place)) * width for place in itertools.product(*axes))
        made.covers = [(start, start + width) for start in starts]
    return made


def contiguous(shape: "Sequence[int]", stride: "Sequence[int]") -> bool:
    """Whether elements lie one after the other, in C order."""
    wanted = 1
    for size, step in zip(reversed(shape), reversed(stride)):  # noqa: B905
        if size != 1 and step != wanted:
            return 0 in shape
        wanted *= size
    return True


def _spelled(data: "memoryview", width: int, offset: int, shape: "tuple[int, ...]", stride: "tuple[int, ...]") -> "memoryview":
    numpy = numpy_module()
    if numpy is not None:
        steps = tuple(step * width for step in stride)
        return memoryview(numpy.ndarray(shape, "V%d" % width, data, offset * width, steps).tobytes())
    unit = min(width, 8)
    if width > unit:  # two numbers an element
        parts = width // unit
        shape, stride, offset = (*shape, parts), (*(step * parts for step in stride), 1), offset * parts
    code: Any = {1: "B", 2: "H", 4: "I", 8: "Q"}[unit]
    cells: Any = data[: len(data) // unit * unit].cast(code)
    made = bytearray()
    size, step = shape[-1], stride[-1]
    for place in itertools.product(*(range(0, one * by, by) if by else [0] * one for one, by in zip(shape[:-1], stride[:-1]))):  # noqa: B905
        start = offset + sum(place)
        if step:
            made += cells[start : start + (size - 1) * step + 1 : step].tobytes()
        else:
            made += struct.pack("<Q", cells[start])[:unit] * size
    return memoryview(bytes(made))


def flipped(one: Tensor, *, conjugate: bool) -> Tensor:
    """With the sign of each element, or with `conjugate` of each imaginary part, turned: what torch leaves to be done later."""
    dtype = PARTS.get(one.dtype, one.dtype)
    width = KINDS[dtype][0]
    if KINDS[dtype][1] not in ("f", "b") or (conjugate and dtype == one.dtype):
        raise UnreadableError("has a tensor whose sign is to be turned, and it has none")
    flip = bytes(code ^ 128 for code in range(256))
    made = bytearray(one.data)
    start, step = (2 * width - 1, 2 * width) if conjugate else (width - 1, width)
    made[start::step] = made[start::step].translate(flip)
    turned = Tensor(one.dtype, one.shape, memoryview(bytes(made)), one.facts)
    turned.origin, turned.covers = one.origin, one.covers
    return turned


def equal(one: "memoryview", other: "memoryview") -> bool:
    """Whether two pieces of memory hold the same bytes."""
    if len(one) != len(other):
        return False
    whole = len(one) // 8 * 8  # by words: ten times as fast as byte by byte
    return one[:whole].cast("Q") == other[:whole].cast("Q") and one[whole:] == other[whole:]


def numpy_module() -> Any:
    """NumPy where the environment has it, else None."""
    try:
        return __import__("numpy")
    except Exception:
        return None
