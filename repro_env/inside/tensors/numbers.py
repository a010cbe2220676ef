"""How far two tensors of one name are apart."""

import math
import struct
import sys
from typing import Any

from .dtypes import FLOATS, KINDS, PARTS, width
from .tensor import Tensor, equal

_CHUNK = 1 << 20
"""Elements of a tensor that are compared at once."""


def differences(name: str, left: Tensor, right: Tensor, numpy: Any) -> "dict[str, Any] | None":
    """What differs between two tensors of one name; None where nothing does, bit for bit."""
    made = {"name": name, "dtype": left.dtype, "shape": list(left.shape)}  # type: dict[str, Any]
    if (left.dtype, left.shape) != (right.dtype, right.shape) or len(left.data) != len(right.data):
        made.update(now_dtype=right.dtype, now_shape=list(right.shape))
        return made
    if equal(left.data, right.data):
        return None
    known = left.dtype in KINDS
    dtype = PARTS.get(left.dtype, left.dtype) if known else "U8"
    size = KINDS[dtype][0]
    parts = width(left.dtype) // size
    found = Sum()
    piece = _CHUNK * size
    for at in range(0, len(left.data), piece):
        one, other = left.data[at : at + piece], right.data[at : at + piece]
        if numpy is not None:
            found.fast(numpy, dtype, at // size, one, other)
        elif equal(one, other):
            found.same(dtype, bytes(one))
        else:
            found.plain(dtype, at // size, bytes(one), bytes(other))
    made.update(
        count=len(left.data) // size // parts,
        differing=found.differing if parts == 1 else _pairs(left.data, right.data, 2 * size, numpy),
        # Bytes of a kind that is not known here are counted as they lie.
        at=_place(found.first // parts, left.shape) if known else [found.first],
        ulp=found.ulp if KINDS[dtype][1] in FLOATS else -1,
        absolute=finite(found.absolute),
        diff2=finite(found.diff2),
        left2=finite(found.left2),
        specials=found.specials,
    )
    return made


def relative(one: "dict[str, Any]") -> float:
    """L2 norm of the difference over that of the left side."""
    if "now_dtype" in one or one["specials"]:
        return math.inf
    if not one["left2"]:
        return math.inf if one["diff2"] else 0.0
    return math.sqrt(one["diff2"] / one["left2"])


class Sum:
    """What two tensors of one shape have of differences, gathered in pieces."""

    def __init__(self) -> None:
        self.differing = 0
        self.first = -1
        self.ulp = 0
        self.absolute = 0.0
        self.diff2 = 0.0
        self.left2 = 0.0
        self.specials = 0
        """Elements of which one alone is no number, or infinite."""

    def same(self, dtype: str, data: bytes) -> None:
        """A piece that is equal, without NumPy."""
        self.left2 += sum(_square(float(one)) for one in numbers(dtype, data) if math.isfinite(one))

    def plain(self, dtype: str, at: int, left: bytes, right: bytes) -> None:
        """A piece, `at` elements from the beginning, without NumPy."""
        size, kind = KINDS[dtype]
        floating = kind in FLOATS
        ones, others = numbers(dtype, left), numbers(dtype, right)
        places = (_ordered(size, left, kind), _ordered(size, right, kind)) if floating else ([], [])
        for number, (one, other) in enumerate(zip(ones, others)):  # noqa: B905
            if math.isfinite(one):
                self.left2 += _square(float(one))
            if left[number * size : (number + 1) * size] == right[number * size : (number + 1) * size]:
                continue
            self.differing += 1
            if self.first < 0:
                self.first = at + number
            if not (math.isfinite(one) and math.isfinite(other)):
                self.specials += 0 if one == other or (one != one and other != other) else 1
                continue
            away = abs(float(one) - float(other)) if floating else float(abs(int(one) - int(other)))
            self.absolute = max(self.absolute, away)
            self.diff2 += _square(away)
            if floating:
                self.ulp = max(self.ulp, abs(places[0][number] - places[1][number]))

    def fast(self, numpy: Any, dtype: str, at: int, left: "memoryview", right: "memoryview") -> None:
        """As `plain`, with NumPy."""
        size, kind = KINDS[dtype]
        bits = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}[size]
        raw, other_raw = (numpy.frombuffer(one, bits) for one in (left, right))
        unequal = raw != other_raw
        count = int(unequal.sum())
        floating = kind in FLOATS
        if kind == "b":
            ones, others = ((one.astype("<u4") << 16).view("<f4") for one in (raw, other_raw))
        elif kind in _SMALL:
            table = numpy.array(_SMALL[kind])
            ones, others = table[raw], table[other_raw]
        elif kind == "?":
            ones, others = raw, other_raw
        else:
            ones, others = raw.view("<%s%d" % (kind, size)), other_raw.view("<%s%d" % (kind, size))
        with numpy.errstate(all="ignore"):
            values = ones.astype("f8")
            usable = numpy.isfinite(values)
            whole = bool(usable.all())
            self.left2 += float(numpy.square(values if whole else values[usable]).sum())
            if not count:
                return
            self.differing += count
            if self.first < 0:
                self.first = at + int(unequal.argmax())
            if not floating:
                # Exact: a 64-bit integer does not fit a float, nor the distance of two a signed one.
                high, low = numpy.maximum(ones[unequal], others[unequal]), numpy.minimum(ones[unequal], others[unequal])
                high, low = (one.astype("<i8" if kind == "i" else "<u8").view("<u8") for one in (high, low))
                away = high - low
                self.absolute = max(self.absolute, float(int(away.max())))
                self.diff2 += float(numpy.square(away.astype("f8")).sum())
                return
            other_values = others.astype("f8")
            if not (whole and numpy.isfinite(other_values).all()):
                both = usable & numpy.isfinite(other_values)
                same = (values == other_values) | (numpy.isnan(values) & numpy.isnan(other_values))
                self.specials += int((unequal & ~both & ~same).sum())
                if not both.any():
                    return
                values, other_values, raw, other_raw = (one[both] for one in (values, other_values, raw, other_raw))
            away = numpy.abs(values - other_values)
            self.absolute = max(self.absolute, float(away.max()))
            self.diff2 += float(numpy.square(away).sum())
            places, others_places = (_places(numpy, one, size, kind) for one in (raw, other_raw))
            high, low = numpy.maximum(places, others_places), numpy.minimum(places, others_places)
            # As unsigned numbers: the distance of two floats may not fit a signed one of their width.
            self.ulp = max(self.ulp, int((high.view("u%d" % size) - low.view("u%d" % size)).max()))


def _places(numpy: Any, raw: Any, size: int, kind: str) -> Any:
    """As `_ordered`, of the same width."""
    if kind == "e8":
        return raw
    whole = raw.view("<i%d" % size)
    return numpy.where(whole >= 0, whole, numpy.array(-(1 << (8 * size - 1)), whole.dtype) - whole)


def _square(one: float) -> float:
    return one * one  # ** raises where this is infinite


def _pairs(left: "memoryview", right: "memoryview", size: int, numpy: Any) -> int:
    """How many of the elements of so many bytes differ."""
    count = 0
    for at in range(0, len(left), _CHUNK * size):
        one, other = left[at : at + _CHUNK * size], right[at : at + _CHUNK * size]
        if numpy is not None:
            ones, others = (numpy.frombuffer(each, "u1").reshape(-1, size) for each in (one, other))
            count += int((ones != others).any(1).sum())
        elif not equal(one, other):
            count += sum(one[place : place + size] != other[place : place + size] for place in range(0, len(one), size))
    return count


def numbers(dtype: str, data: bytes) -> "list[float]":
    """Elements as numbers."""
    size, kind = KINDS[dtype]
    if kind == "b":
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    if kind in _SMALL:
        return [_SMALL[kind][code] for code in data]
    code = {"f": {8: "d", 4: "f", 2: "e"}, "i": {8: "q", 4: "i", 2: "h", 1: "b"}, "u": {8: "Q", 4: "I", 2: "H", 1: "B"}}
    return list(struct.unpack("<%d%s" % (len(data) // size, "B" if kind == "?" else code[kind][size]), data))


def _small_floats(kind: str) -> "list[float]":
    """The 256 values of an 8-bit float (OCP FP8: E4M3 without infinities, E5M2 as IEEE; of FNUZ, one NaN is where -0 would be;
    of E8M0, powers of two alone)."""
    if kind == "e8":
        return [2.0 ** (code - 127) for code in range(255)] + [math.nan]
    exponent, mantissa = (4, 3) if kind[1] == "4" else (5, 2)
    bias = (1 << (exponent - 1)) - (kind[0] == "e")
    made = []
    for code in range(256):
        sign = -1.0 if code & 128 else 1.0
        high, low = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
        if kind == "e4" and code & 127 == 127:
            made.append(math.nan)
        elif kind == "e5" and high == 31:
            made.append(math.nan if low else sign * math.inf)
        elif kind[0] == "z" and code == 128:
            made.append(math.nan)
        elif high:
            made.append(sign * (1 + low / (1 << mantissa)) * 2.0 ** (high - bias))
        else:
            made.append(sign * low / (1 << mantissa) * 2.0 ** (1 - bias))
    return made


_SMALL = {kind: _small_floats(kind) for kind in ("e4", "e5", "z4", "z5", "e8")}


def _ordered(size: int, data: bytes, kind: str) -> "list[int]":
    """Floats as integers in the order of their values, neighbours next to each other; both zeros are 0."""
    if kind == "e8":
        return list(data)
    code = {8: "q", 4: "i", 2: "h", 1: "b"}[size]
    least = -(1 << (8 * size - 1))
    return [one if one >= 0 else least - one for one in struct.unpack("<%d%s" % (len(data) // size, code), data)]


def finite(one: float) -> float:
    return one if math.isfinite(one) else sys.float_info.max


def _place(number: int, shape: "tuple[int, ...]") -> "list[int]":
    made = []
    for size in reversed(shape):
        made.append(number % size)
        number //= size
    return made[::-1]
