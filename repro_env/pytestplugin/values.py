"""Values of tests: the numbers and arrays in them by place, as JSON stores them, and the differences between two of them."""

from __future__ import annotations

import base64
import ctypes
import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from repro_env.guest.tensors.numbers import difference_of, numbers, relative_distance
from repro_env.guest.tensors.tensor import DTYPES, FLOATS, KINDS, PARTS, Tensor

_MOST_ULP = 1_000_000
"""Larger distances say no more than the relative difference."""

Leaves = dict[str, Any]
"""Place, as Python writes it (`value['loss'][3]`) -> a number, text or None; for an array, an object with its dtype, shape and bytes."""


def leaves(value: object) -> Leaves:
    """Return the numbers, texts and arrays in a value, as they are read from a record.

    Raises `TypeError` for a type that is not supported, and `ValueError` if there are none.
    """
    found = dict(_leaves("value", value))
    if not found:
        raise ValueError("the value is empty, and has no numbers to compare")
    return dict(json.loads(json.dumps(found)))


def _leaves(place: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, float):  # also NumPy's doubles
        yield place, float(value) if value == value else math.nan
    elif value is None or isinstance(value, bool | int | str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{place} has the key {key!r}: only text and integers are supported")
            yield from _leaves(f"{place}[{key!r}]", item)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(f"{place}[{number}]", item)
    else:
        name, shape, data = _array(value) or ("", (), b"")
        if name not in DTYPES:
            what = f"{type(value).__qualname__} {name}".strip()
            raise TypeError(f"{place} is of type {what}: pass numbers, text, lists, dicts, arrays of numbers or dense tensors")
        yield place, {"dtype": DTYPES[name], "shape": shape, "data": base64.b64encode(data).decode()}


def _array(value: Any) -> tuple[str, tuple[int, ...], bytes] | None:
    """Return the name of the dtype, the shape and the bytes of an array in C order, little-endian; None for another value."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided:
        tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        size = tensor.numel() * tensor.element_size()
        return str(tensor.dtype)[6:], tuple(tensor.shape), ctypes.string_at(tensor.data_ptr(), size) if size else b""
    # Subclasses, such as masked arrays, have more than numbers.
    if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        array = numpy.asarray(value)
        return array.dtype.name, array.shape, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return None


def differences(then: Leaves, now: Leaves, *, relative: float, absolute: float) -> Iterator[str]:
    """Describe each value that differs, in the order of the record.

    Floats are equal if the L2 norm of their difference is at most `relative` times that of the recorded ones, or if no
    difference is larger than `absolute`. If both bounds are negative, all bits must be equal. Other values have no tolerance.
    """
    for place in {**then, **now}:
        if place not in now:
            yield f"{place} is in the record ({_shown(then[place])}), but not in the value of the test"
        elif place not in then:
            yield f"{place} is in the value of the test ({_shown(now[place])}), but not in the record"
        elif json.dumps(then[place]) != json.dumps(now[place]):
            yield from _difference(place, then[place], now[place], relative, absolute)


def _difference(place: str, then: object, now: object, relative: float, absolute: float) -> Iterator[str]:
    left, right = _tensor(then), _tensor(now)
    if left is None or right is None or (left.dtype, left.shape) != (right.dtype, right.shape):
        yield f"{place} differs: recorded {_shown(then)}, now {_shown(now)}"
        return
    found: dict[str, Any] = difference_of(left, right, sys.modules.get("numpy"))
    distance, is_float = relative_distance(found), KINDS[PARTS.get(left.dtype, left.dtype)][1] in FLOATS
    if is_float and not found["specials"] and (distance <= relative or found["absolute"] <= absolute):
        return
    element = f"recorded {_element(left, found['at'])!r}, now {_element(right, found['at'])!r}"
    sizes = [f"{found['differing']:,} of {found['count']:,} elements differ"] if left.shape else []
    sizes += [f"{found['ulp']:,} ULP"] if 0 < found["ulp"] <= _MOST_ULP else []
    sizes += [f"relative {distance:.2g}"] if 0 < distance < math.inf else []
    yield f"{place}{found['at'] if left.shape else ''} differs: {'; '.join((element, *sizes))}"


def _tensor(leaf: object) -> Tensor | None:
    """A float or an array; None for another value."""
    if isinstance(leaf, float):
        return Tensor("F64", (), memoryview(struct.pack("<d", leaf)))
    if isinstance(leaf, dict):
        return Tensor(leaf["dtype"], tuple(leaf["shape"]), memoryview(base64.b64decode(leaf["data"])))
    return None


def _element(tensor: Tensor, at: list[int]) -> complex:
    number = 0
    for size, index in zip(tensor.shape, at, strict=True):
        number = number * size + index
    width = KINDS[tensor.dtype][0]
    found = numbers(PARTS.get(tensor.dtype, tensor.dtype), bytes(tensor.data[number * width : (number + 1) * width]))
    return complex(*found) if tensor.dtype in PARTS else found[0]


def _shown(leaf: object) -> str:
    return f"an array of {leaf['dtype']} {leaf['shape']}" if isinstance(leaf, dict) else repr(leaf)
