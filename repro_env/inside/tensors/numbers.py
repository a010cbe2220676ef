"""How far two tensors of one name are apart."""

import math
import struct
import sys
from typing import Any

from .dtypes import KINDS
from .tensor import Tensor

_CHUNK = 1 << 20
"""Elements of a tensor that are compared at once."""


def differences(name: str, left: Tensor, right: Tensor, numpy: Any) -> "dict[str, Any] | None":
    """What differs between two tensors of one name; None where nothing does, bit for bit."""
    made = {"name": name, "dtype": left.dtype, "shape": list(left.shape)}  # type: dict[str, Any]
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        made.update(now_dtype=right.dtype, now_shape=list(right.shape))
        return made
    if left.data == right.data:
        return None
    dtype = left.dtype
    if KINDS[dtype][1] == "c":
        dtype = "F32" if dtype == "C64" else "F64"
    width = KINDS[dtype][0]
    parts = KINDS[left.dtype][0] // width
    found = _Sum()
    size = _CHUNK * width
    for at in range(0, len(left.data), size):
        one, other = left.data[at : at + size], right.data[at : at + size]
        if numpy is not None:
            found.fast(numpy, dtype, at // width, one, other)
        else:
            found.plain(dtype, at // width, bytes(one), bytes(other))
    made.update(
        count=len(left.data) // width // parts,
        differing=found.differing,
        at=_place(found.first // parts, left.shape),
        ulp=found.ulp if KINDS[dtype][1] in ("f", "b", "e4", "e5") else -1,
        absolute=found.absolute,
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


class _Sum:
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

    def plain(self, dtype: str, at: int, left: bytes, right: bytes) -> None:
        """A piece, `at` elements from the beginning, without NumPy."""
        width, kind = KINDS[dtype]
        floating = kind in ("f", "b", "e4", "e5")
        ones, others = _floats(dtype, left), _floats(dtype, right)
        places = _ordered(width, left), _ordered(width, right) if floating else []
        for number, (one, other) in enumerate(zip(ones, others)):  # noqa: B905
            if math.isfinite(one):
                self.left2 += float(one) * float(one)
            if left[number * width : (number + 1) * width] == right[number * width : (number + 1) * width]:
                continue
            self.differing += 1
            if self.first < 0:
                self.first = at + number
            if not (math.isfinite(one) and math.isfinite(other)):
                self.specials += 0 if one == other or (one != one and other != other) else 1
                continue
            away = abs(float(one) - float(other)) if floating else float(abs(int(one) - int(other)))
            self.absolute = max(self.absolute, away)
            self.diff2 += away * away
            if floating:
                self.ulp = max(self.ulp, abs(places[0][number] - places[1][number]))

    def fast(self, numpy: Any, dtype: str, at: int, left: "memoryview", right: "memoryview") -> None:
        """As `plain`, with NumPy."""
        width, kind = KINDS[dtype]
        bits = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}[width]
        raw, other_raw = (numpy.frombuffer(one, bits) for one in (left, right))
        unequal = raw != other_raw
        count = int(unequal.sum())
        floating = kind in ("f", "b", "e4", "e5")
        if kind == "b":
            ones, others = ((one.astype("<u4") << 16).view("<f4") for one in (raw, other_raw))
        elif kind in ("e4", "e5"):
            table = numpy.array(_small_floats(4, 3) if kind == "e4" else _small_floats(5, 2))
            ones, others = table[raw], table[other_raw]
        elif kind == "?":
            ones, others = raw, other_raw
        else:
            ones, others = raw.view("<%s%d" % (kind, width)), other_raw.view("<%s%d" % (kind, width))
        with numpy.errstate(all="ignore"):
            values = ones.astype("f8")
            finite = numpy.isfinite(values)
            self.left2 += float((values[finite] ** 2).sum())
            if not count:
                return
            self.differing += count
            if self.first < 0:
                self.first = at + int(unequal.argmax())
            values, other_values = values[unequal], others[unequal].astype("f8")
            both = numpy.isfinite(values) & numpy.isfinite(other_values)
            same = (values == other_values) | (numpy.isnan(values) & numpy.isnan(other_values))
            self.specials += int((~both & ~same).sum())
            if not both.any():
                return
            away = abs(values[both] - other_values[both])
            self.absolute = max(self.absolute, float(away.max()))
            self.diff2 += float((away**2).sum())
            if floating:
                signed = "<i%d" % width
                places = []
                for one in (raw, other_raw):
                    whole = one[unequal][both].view(signed).astype("i8")
                    least = -(1 << (8 * width - 1))
                    places.append(numpy.where(whole >= 0, whole, least - whole))
                high = numpy.maximum(places[0], places[1])
                low = numpy.minimum(places[0], places[1])
                # As unsigned numbers: the distance of two 64-bit floats may not fit a signed one.
                self.ulp = max(self.ulp, int((high.view("u8") - low.view("u8")).max()))


def _small_floats(exponent: int, mantissa: int) -> "list[float]":
    """The 256 values of an 8-bit float (OCP FP8: E4M3 without infinities, E5M2 as IEEE)."""
    bias = (1 << (exponent - 1)) - 1
    made = []
    for code in range(256):
        sign = -1.0 if code & 128 else 1.0
        high, low = (code & 127) >> mantissa, code & ((1 << mantissa) - 1)
        if mantissa == 3 and code & 127 == 127:
            made.append(math.nan)
        elif mantissa == 2 and high == 31:
            made.append(math.nan if low else sign * math.inf)
        elif high:
            made.append(sign * (1 + low / (1 << mantissa)) * 2.0 ** (high - bias))
        else:
            made.append(sign * low / (1 << mantissa) * 2.0 ** (1 - bias))
    return made


def _floats(dtype: str, data: bytes) -> "list[float]":
    """Elements as numbers."""
    width, kind = KINDS[dtype]
    if kind == "b":
        return [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    if kind in ("e4", "e5"):
        table = _small_floats(4, 3) if kind == "e4" else _small_floats(5, 2)
        return [table[code] for code in data]
    code = {"f": {8: "d", 4: "f", 2: "e"}, "i": {8: "q", 4: "i", 2: "h", 1: "b"}, "u": {8: "Q", 4: "I", 2: "H", 1: "B"}}
    return list(struct.unpack("<%d%s" % (len(data) // width, "B" if kind == "?" else code[kind][width]), data))


def _ordered(width: int, data: bytes) -> "list[int]":
    """Floats as integers in the order of their values, neighbours next to each other; both zeros are 0."""
    code = {8: "q", 4: "i", 2: "h", 1: "b"}[width]
    least = -(1 << (8 * width - 1))
    return [one if one >= 0 else least - one for one in struct.unpack("<%d%s" % (len(data) // width, code), data)]


def finite(one: float) -> float:
    return one if math.isfinite(one) else sys.float_info.max


def _place(number: int, shape: "tuple[int, ...]") -> "list[int]":
    made = []
    for size in reversed(shape):
        made.append(number % size)
        number //= size
    return made[::-1]
