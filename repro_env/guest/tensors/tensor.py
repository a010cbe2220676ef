"""A tensor as bytes, independent of the format of its file, and the dtypes: their sizes, and their names in torch and NumPy.

Names of dtypes are those of safetensors. Elements of any other name are compared byte by byte.
"""

import itertools
from typing import Any, Iterable, NamedTuple, Sequence


class UnreadableError(Exception):
    """A file is damaged or not supported. The text is a predicate of the file, such as "is cut off"."""


# name -> (bytes of an element, kind); kinds: i, u integers; f, b floats of IEEE layout and bfloat16; c two of these;
# e4, e5, z4, z5, e8 floats of 8 bits (OCP FP8; those without a minus zero; a bare exponent); ? booleans
KINDS = {
    name: (int(width), kind)
    for name, width, kind in (
        entry.split(":")
        for entry in (
            "F64:8:f F32:4:f F16:2:f BF16:2:b F8_E4M3:1:e4 F8_E5M2:1:e5 F8_E4M3FNUZ:1:z4 F8_E5M2FNUZ:1:z5 F8_E8M0:1:e8 "
            "I64:8:i I32:4:i I16:2:i I8:1:i U64:8:u U32:4:u U16:2:u U8:1:u BOOL:1:? C32:4:c C64:8:c C128:16:c"
        ).split()
    )
}
FLOATS = ("f", "b", "e4", "e5", "z4", "z5", "e8")
PARTS = {"C32": "F16", "C64": "F32", "C128": "F64"}
"""A complex number is two of these."""


def _table(text: str) -> "dict[str, str]":
    """`a:b c:d` as a dict."""
    return {name: value for name, _, value in (entry.partition(":") for entry in text.split())}


STORAGES = _table(
    "DoubleStorage:F64 FloatStorage:F32 HalfStorage:F16 BFloat16Storage:BF16 LongStorage:I64 IntStorage:I32 "
    "ShortStorage:I16 CharStorage:I8 ByteStorage:U8 UntypedStorage:U8 BoolStorage:BOOL ComplexFloatStorage:C64 "
    "ComplexDoubleStorage:C128 QInt8Storage:I8 QUInt8Storage:U8 QInt32Storage:I32"
)
DTYPES = _table(
    "float64:F64 float32:F32 float16:F16 bfloat16:BF16 float8_e4m3fn:F8_E4M3 float8_e5m2:F8_E5M2 "
    "float8_e4m3fnuz:F8_E4M3FNUZ float8_e5m2fnuz:F8_E5M2FNUZ float8_e8m0fnu:F8_E8M0 int64:I64 "
    "int32:I32 int16:I16 int8:I8 uint64:U64 uint32:U32 uint16:U16 uint8:U8 bool:BOOL complex32:C32 complex64:C64 "
    "complex128:C128"
)
NUMPY = _table("f8:F64 f4:F32 f2:F16 i8:I64 i4:I32 i2:I16 i1:I8 u8:U64 u4:U32 u2:U16 u1:U8 b1:BOOL c8:C64 c16:C128")

_REPEATS = 64
_SMALL = 256 << 20
"""A view that repeats its storage more than `_REPEATS` times and has more bytes than this is not read."""
_MAX_RANGES = 1 << 20
"""The most elements of a view with gaps. In a larger view, all bytes of the storage count as not covered."""


class Tensor:
    """Elements in C order, little-endian. `facts`: other properties of the tensor in its file, by name."""

    __slots__ = ("covers", "data", "dtype", "facts", "origin", "shape")

    def __init__(
        self,
        dtype: str,
        shape: "tuple[int, ...]",
        data: "memoryview",
        facts: "dict[str, object] | None" = None,
        origin: object = None,
        covers: "Sequence[tuple[int, int]]" = (),
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data
        self.facts = facts or {}
        self.origin = origin
        """The memory or object that it is a view of: tensors with the same origin share their elements."""
        self.covers = covers
        """Bytes of its origin that are its elements: begin, end."""

    def with_facts(self, facts: "dict[str, object]") -> "Tensor":
        """The same elements, with more facts."""
        return Tensor(self.dtype, self.shape, self.data, {**self.facts, **facts}, self.origin, self.covers)


class Storage(NamedTuple):
    """A flat piece of memory in a file that torch.save wrote: `data`, which begins `start` bytes into `origin`."""

    dtype: str
    data: memoryview
    origin: memoryview
    start: int = 0
    device: str = "cpu"


def size_of(shape: "tuple[int, ...]") -> int:
    """The number of elements of a shape. Raises `UnreadableError` for an invalid shape."""
    count = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise UnreadableError("has a tensor with an invalid size")
        count *= size
    return count


def read_view(storage: Storage, dtype: str, offset: int, shape: "tuple[int, ...]", stride: "tuple[int, ...]") -> Tensor:
    """The elements of a view of a storage, in C order. Raises `UnreadableError` for a view that leaves its storage."""
    width = KINDS[dtype][0]
    count = size_of(shape)
    if any(type(step) is not int or step < 0 for step in (*stride, offset)) or len(shape) != len(stride):
        raise UnreadableError("has a tensor with an invalid stride or offset")
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride)) if count else offset  # noqa: B905
    if count and (last + 1) * width > len(storage.data):
        raise UnreadableError("has a tensor that is larger than its storage")
    begin, end = offset * width, (offset + count) * width
    covers = [(storage.start + begin, storage.start + end)]
    if contiguous(shape, stride):
        return Tensor(dtype, shape, storage.data[begin:end], None, storage.origin, covers)
    if count * width > max(len(storage.data) * _REPEATS, _SMALL):
        raise UnreadableError("has a tensor that is far larger than its storage")
    axes = sorted(zip(stride, shape), reverse=True)  # noqa: B905
    if not contiguous([size for _, size in axes], [step for step, _ in axes]):
        starts = (storage.start + start for start in _starts(width, offset, shape, stride))
        covers = [(start, start + width) for start in starts] if count <= _MAX_RANGES else []
    return Tensor(dtype, shape, _gather(storage.data, width, offset, shape, stride), None, storage.origin, covers)


def contiguous(shape: "Sequence[int]", stride: "Sequence[int]") -> bool:
    """Whether elements are stored one after the other, in C order."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride)):  # noqa: B905
        if size != 1 and step != expected:
            return 0 in shape
        expected *= size
    return True


def _starts(width: int, offset: int, shape: "Sequence[int]", stride: "Sequence[int]") -> "Iterable[int]":
    """The first byte of each element of a view, in C order."""
    axes = [range(0, size * step * width, step * width) if step else [0] * size for size, step in zip(shape, stride)]  # noqa: B905
    return (offset * width + sum(steps) for steps in itertools.product(*axes))


def _gather(data: "memoryview", width: int, offset: int, shape: "Sequence[int]", stride: "Sequence[int]") -> "memoryview":
    """The bytes of the elements of a view, in C order."""
    numpy = numpy_module()
    if numpy is not None:
        steps = tuple(step * width for step in stride)
        return memoryview(numpy.ndarray(shape, "V%d" % width, data, offset * width, steps).tobytes())
    gathered = bytearray()
    for start in _starts(width, offset, shape, stride):
        gathered += data[start : start + width]
    return memoryview(bytes(gathered))


def equal(left: "memoryview", right: "memoryview") -> bool:
    """Whether two pieces of memory have the same bytes."""
    if len(left) != len(right):
        return False
    words = len(left) // 8 * 8  # by words: ten times as fast as byte by byte
    return left[:words].cast("Q") == right[:words].cast("Q") and left[words:] == right[words:]


def numpy_module() -> Any:
    """NumPy if the environment has it, else None."""
    try:
        return __import__("numpy")
    except Exception:
        return None
