"""The numeric difference between two tensors with the same name."""

import math
import struct
import sys
from typing import Any

from .tensor import FLOATS, KINDS, PARTS, Tensor

_CHUNK = 1 << 20
"""Elements of a tensor that are compared at once."""
_ROUNDING = 4
"""Whole numbers with a distance of more units in the last place are counts: labels, steps, years."""


def difference_of(left: Tensor, right: Tensor, numpy: Any) -> "dict[str, Any]":
    """How two tensors differ, as `TensorDifference` in `compare/outputs`, without the name."""
    difference = {"dtype": left.dtype, "shape": list(left.shape)}  # type: dict[str, Any]
    if (left.dtype, left.shape) != (right.dtype, right.shape) or len(left.data) != len(right.data):
        return {**difference, "now_dtype": right.dtype, "now_shape": list(right.shape)}
    # Elements of an unknown dtype are compared as bytes.
    supported = left.dtype in KINDS
    dtype = PARTS.get(left.dtype, left.dtype) if supported else "U8"
    size = KINDS[dtype][0]
    parts = KINDS[left.dtype][0] // size if supported else 1
    total = Sum(parts)
    for at in range(0, len(left.data), _CHUNK * size):
        pieces = left.data[at : at + _CHUNK * size], right.data[at : at + _CHUNK * size]
        if numpy is not None:
            total.fast(numpy, dtype, at // size, *pieces)
        else:
            total.plain(dtype, at // size, *map(bytes, pieces))
    return {
        **difference,
        "count": len(left.data) // size // parts,
        "differing": total.differing,
        "at": _index(total.first, left.shape) if supported else [total.first],
        "ulp": total.ulp if KINDS[dtype][1] in FLOATS and not (total.whole and total.ulp > _ROUNDING) else -1,
        "absolute": to_finite(total.absolute),
        "diff2": to_finite(total.diff2),
        "left2": to_finite(total.left2),
        "specials": total.specials,
    }


def relative_distance(difference: "dict[str, Any]") -> float:
    """L2 norm of the difference over that of the left side."""
    if "now_dtype" in difference or difference["specials"]:
        return math.inf
    if not difference["left2"]:
        return math.inf if difference["diff2"] else 0.0
    return math.sqrt(difference["diff2"] / difference["left2"])


class Sum:
    """The differences between two tensors with the same shape, summed piece by piece."""

    def __init__(self, parts: int) -> None:
        """`parts`: numbers of one element, 2 for complex elements."""
        self.parts = parts
        self.differing = 0
        self.first = -1
        self.last = -1
        """Numbers of the first and the last element that differ."""
        self.ulp = 0
        self.absolute = 0.0
        self.diff2 = 0.0
        self.left2 = 0.0
        self.specials = 0
        """Elements that are NaN or infinite on one side only."""
        self.whole = True
        """Whether all numbers that differ are whole numbers."""

    def plain(self, dtype: str, at: int, left: bytes, right: bytes) -> None:
        """Add a piece, `at` elements from the beginning, without NumPy."""
        size, kind = KINDS[dtype]
        floating = kind in FLOATS
        ranks = (_ranks(size, left, kind), _ranks(size, right, kind)) if floating else ([], [])
        for number, (old, new) in enumerate(zip(numbers(dtype, left), numbers(dtype, right))):  # noqa: B905
            if math.isfinite(old):
                self.left2 += _square(float(old))
            if left[number * size : (number + 1) * size] == right[number * size : (number + 1) * size]:
                continue
            element = (at + number) // self.parts
            self.differing += element != self.last
            self.first = element if self.first < 0 else self.first
            self.last = element
            if not (math.isfinite(old) and math.isfinite(new)):
                self.specials += 0 if old == new or (old != old and new != new) else 1
                continue
            distance = abs(float(old) - float(new)) if floating else float(abs(int(old) - int(new)))
            self.absolute = max(self.absolute, distance)
            self.diff2 += _square(distance)
            if floating:
                self.whole = self.whole and old % 1 == 0 == new % 1
                self.ulp = max(self.ulp, abs(ranks[0][number] - ranks[1][number]))

    def fast(self, numpy: Any, dtype: str, at: int, left: "memoryview", right: "memoryview") -> None:
        """Add a piece as `plain` does, with NumPy."""
        size, kind = KINDS[dtype]
        bits = [numpy.frombuffer(piece, "<u%d" % size) for piece in (left, right)]
        unequal = bits[0] != bits[1]
        if kind == "b":
            old, new = ((raw.astype("<u4") << 16).view("<f4") for raw in bits)
        elif kind in _SMALL:
            table = numpy.array(_SMALL[kind])
            old, new = table[bits[0]], table[bits[1]]
        elif kind == "?":
            old, new = bits
        else:
            old, new = (raw.view("<%s%d" % (kind, size)) for raw in bits)
        with numpy.errstate(all="ignore"):
            values = old.astype("f8")
            usable = numpy.isfinite(values)
            all_usable = bool(usable.all())
            self.left2 += float(numpy.square(values if all_usable else values[usable]).sum())
            if not unequal.any():
                return
            elements = unequal if self.parts == 1 else unequal.reshape(-1, self.parts).any(1)
            self.differing += int(elements.sum())
            self.first = at // self.parts + int(elements.argmax()) if self.first < 0 else self.first
            if kind not in FLOATS:
                # As unsigned integers: a 64-bit integer does not fit into a float, nor the distance of two into a signed one.
                high, low = numpy.maximum(old[unequal], new[unequal]), numpy.minimum(old[unequal], new[unequal])
                high, low = (side.astype("<i8" if kind == "i" else "<u8").view("<u8") for side in (high, low))
                distance = high - low
                self.absolute = max(self.absolute, float(int(distance.max())))
                self.diff2 += float(numpy.square(distance.astype("f8")).sum())
                return
            new_values = new.astype("f8")
            if not (all_usable and numpy.isfinite(new_values).all()):
                both = usable & numpy.isfinite(new_values)
                same = (values == new_values) | (numpy.isnan(values) & numpy.isnan(new_values))
                self.specials += int((unequal & ~both & ~same).sum())
                if not both.any():
                    return
                values, new_values = values[both], new_values[both]
                bits = [raw[both] for raw in bits]
            distance = numpy.abs(values - new_values)
            moved = distance > 0
            self.whole = self.whole and all(bool((side[moved] % 1 == 0).all()) for side in (values, new_values))
            self.absolute = max(self.absolute, float(distance.max()))
            self.diff2 += float(numpy.square(distance).sum())
            ranks = [_fast_ranks(numpy, raw, size, kind) for raw in bits]
            # As unsigned integers: the distance of two ranks may not fit into a signed one of the same size.
            high, low = (side.view("u%d" % size) for side in (numpy.maximum(*ranks), numpy.minimum(*ranks)))
            self.ulp = max(self.ulp, int((high - low).max()))


def _fast_ranks(numpy: Any, raw: Any, size: int, kind: str) -> Any:
    """`_ranks` with NumPy, as integers of the same size."""
    if kind == "e8":
        return raw
    signed = raw.view("<i%d" % size)
    return numpy.where(signed >= 0, signed, numpy.array(-(1 << (8 * size - 1)), signed.dtype) - signed)


def _square(number: float) -> float:
    return number * number  # ** raises if the result is infinite


def numbers(dtype: str, data: bytes) -> "list[float]":
    """The elements as Python numbers."""
    size, kind = KINDS[dtype]
    if kind == "b":
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    if kind in _SMALL:
        return [_SMALL[kind][code] for code in data]
    codes = {"f": {8: "d", 4: "f", 2: "e"}, "i": {8: "q", 4: "i", 2: "h", 1: "b"}, "u": {8: "Q", 4: "I", 2: "H", 1: "B"}}
    return list(struct.unpack("<%d%s" % (len(data) // size, "B" if kind == "?" else codes[kind][size]), data))


def _small_floats(kind: str) -> "list[float]":
    """The 256 values of an 8-bit float.

    OCP FP8: E4M3 has no infinities, E5M2 is like IEEE, FNUZ has one NaN in place of -0, E8M0 has only powers of two.
    """
    if kind == "e8":
        return [2.0 ** (code - 127) for code in range(255)] + [math.nan]
    exponent, mantissa = (4, 3) if kind[1] == "4" else (5, 2)
    bias = (1 << (exponent - 1)) - (kind[0] == "e")
    values = []
    for code in range(256):
        sign = -1.0 if code & 128 else 1.0
        high, low = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
        if kind == "e4" and code & 127 == 127:
            values.append(math.nan)
        elif kind == "e5" and high == 31:
            values.append(math.nan if low else sign * math.inf)
        elif kind[0] == "z" and code == 128:
            values.append(math.nan)
        elif high:
            values.append(sign * (1 + low / (1 << mantissa)) * 2.0 ** (high - bias))
        else:
            values.append(sign * low / (1 << mantissa) * 2.0 ** (1 - bias))
    return values


_SMALL = {kind: _small_floats(kind) for kind in ("e4", "e5", "z4", "z5", "e8")}


def _ranks(size: int, data: bytes, kind: str) -> "list[int]":
    """The rank of each float among all floats of its dtype: neighbours differ by 1, both zeros have rank 0."""
    if kind == "e8":
        return list(data)
    code = {8: "q", 4: "i", 2: "h", 1: "b"}[size]
    least = -(1 << (8 * size - 1))
    return [bits if bits >= 0 else least - bits for bits in struct.unpack("<%d%s" % (len(data) // size, code), data)]


def to_finite(number: float) -> float:
    """The number, or the largest float for infinity and NaN, which JSON does not support."""
    return number if math.isfinite(number) else sys.float_info.max


def _index(number: int, shape: "tuple[int, ...]") -> "list[int]":
    """The index of an element by its number in C order."""
    index = []
    for size in reversed(shape):
        index.append(number % size)
        number //= size
    return index[::-1]
