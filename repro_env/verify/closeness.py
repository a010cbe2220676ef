"""Two pieces of text that are not equal: may rounding alone have done it?"""

from __future__ import annotations

import math
import re

from repro_env.verify.compared import Sameness

CLOSE = 1e-3
"""Relative distance of two numbers in text that may still be rounding: in measured runs that differed by nothing but the
number of threads, losses moved by a few units in the last place."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z_.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)(?![0-9A-Za-z_])")


def numbers(then: str, now: str) -> Sameness:
    """Two pieces of text that differ: numeric where only numbers with a fraction do, and those are close."""
    one, other = _NUMBER.findall(then), _NUMBER.findall(now)
    if len(one) != len(other) or not one or _NUMBER.sub("#", then) != _NUMBER.sub("#", now):
        return "different"
    return "numeric" if all(_close(*pair) for pair in zip(one, other, strict=True)) else "different"


def _close(then: str, now: str) -> bool:
    if then == now:
        return True
    if not any(mark in then for mark in ".eE") or not any(mark in now for mark in ".eE"):
        return False  # whole numbers count things
    try:
        one, other = float(then), float(now)
    except ValueError:
        return False
    return close(one, other)


def close(one: float, other: float) -> bool:
    """Whether two numbers may differ by rounding alone."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return True
    return math.isfinite(one) and math.isfinite(other) and abs(one - other) <= CLOSE * max(abs(one), abs(other))
