"""Decide whether rounding explains the difference between two texts with numbers (decision 0061)."""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal

_NUMBER = re.compile(
    r"(?<![0-9A-Za-z_.])(?<!\d[:/-])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
    r"(?![0-9A-Za-z_]|[.:/-]\d)"
)
"""A number that is not part of a name, a date, a time of day or a version."""
_ABSOLUTE = Decimal("1e-5")
"""For numbers above one, the bound does not grow with the number: a date, a dose or an amount of money is far from zero, and one
thousandth of it is a difference. Numbers below one have this bound relative to their size."""
_RELATIVE = Decimal("1e-10")
_FLOAT32_DIGITS = 15
"""Two numbers of which one has so many digits, and which are exactly float32s, were printed from float32s."""
_FLOAT32 = Decimal(4) * Decimal(2) ** -23
"""Four units in the last place of a float32, relative to the number."""
_LONGEST = 400
"""The most characters of a number that is compared: a double with all its digits."""


def only_rounds(then: str, now: str) -> bool:
    """Whether two texts differ only in numbers, and each of these by no more than rounding."""
    old, new = _NUMBER.findall(then), _NUMBER.findall(now)
    if len(old) != len(new) or not old or _NUMBER.sub("#", then) != _NUMBER.sub("#", now):
        return False
    return all(left == right or _is_close(left, right) for left, right in zip(old, new, strict=True))


def _is_close(then: str, now: str) -> bool:
    """Whether two numbers are measurements that differ by no more than rounding.

    Whole numbers are counts, years or IDs. Infinity, NaN and what a float cannot hold are near no other number. Equal numbers
    with other texts (`0.0` and `-0.0`) were printed by other code or have another sign.
    """
    if max(len(then), len(now)) > _LONGEST or not all(math.isfinite(float(text)) and float(text) for text in (then, now)):
        return False
    left, right = Decimal(then), Decimal(now)
    if not all(any(mark in text for mark in ".eE") for text in (then, now)) or (_is_whole(left) and _is_whole(right)):
        return False
    size = max(abs(left), abs(right))
    bound = max(_ABSOLUTE * min(size, Decimal(1)), _RELATIVE * size)
    if max(len(number.as_tuple().digits) for number in (left, right)) >= _FLOAT32_DIGITS and _is_float32(left, right):
        bound = max(bound, _FLOAT32 * size)
    return 0 < abs(left - right) <= bound


def _is_whole(number: Decimal) -> bool:
    return number == number.to_integral_value()


def _is_float32(*numbers: Decimal) -> bool:
    """Whether each number is a float32. `repr(float(x))` and JSON print all its digits."""
    try:
        return all(struct.unpack("<f", struct.pack("<f", float(number))) == (float(number),) for number in numbers)
    except OverflowError:
        return False
