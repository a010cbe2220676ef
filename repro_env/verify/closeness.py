"""Two values or pieces of text that are not equal: may rounding alone have done it, or do they say nothing of results?"""

from __future__ import annotations

import math
import re

from repro_env.verify import masks
from repro_env.verify.compared import Sameness

CLOSE = 1e-3
"""Relative distance of two numbers in text that may still be rounding: in measured runs that differed by nothing but the
number of threads, losses moved by a few units in the last place."""
_NUMBER = re.compile(r"(?<![0-9A-Za-z_.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)(?![0-9A-Za-z_])")
_PATH = re.compile(r"(?<!\S)[^\s/]*/\S*")
"""What has no space in it: a number beside a path belongs to none."""
_PLACE = re.compile(r"(?:\.\d+)+\Z")
"""In a list: a list of times has the name of what it lists."""


def value(name: str, then: str | None, now: str | None, *, masked: bool, texts: bool = True) -> Sameness | None:
    """A value that differs: its level, or None where it says nothing of results. `texts`: both are here as they are, whole."""
    if then is None or now is None or then == now:  # what is equal here differs in what cannot be shown
        return "different"
    if masked and (_named(name, then, now) or (texts and _alike(then, now))):
        return None
    return numbers(then, now)


def _named(name: str, then: str, now: str) -> bool:
    """Whether its own name says that a value is a time or the like. What holds other values is not masked by its name."""
    if any(one[:1] in ("{", "[") for one in (then, now)):
        return False
    key = _PLACE.sub("", name).rpartition(".")[2]
    if key.endswith(("host", "hostname")) and not any(letter.isalpha() for letter in then + now):
        return False  # a score of the hosts'
    return masks.volatile(key)


def _alike(then: str, now: str) -> bool:
    one, other = masks.text(then), masks.text(now)
    if one == other:
        return True
    # Only a path may have a moment as a bare number in it: any other number may be a seed, or a count.
    ones, others = (_PATH.sub(lambda found: masks.name(found[0]), text) for text in (one, other))
    # Nor ends a path's counter before a space: that may be the first of several words.
    return ones == others and masks.name(one) == masks.name(other)


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
