"""Any state -> what `torch.load(weights_only=True)` takes, and back. Nothing is pickled that could run code."""

from __future__ import annotations

import collections
import ctypes
import sys
from typing import Any

from repro_env.checkpoint.errors import CheckpointError

_TAG = "repro-env"
"""A dict with this key stands for something that the format has no type for."""
_PLAIN = (type(None), bool, int, float, complex, str)


def encode(value: Any, where: str) -> Any:
    """`where` names the value in an error. Raises `CheckpointError` for what can only be pickled."""
    import torch

    kind = type(value)
    if kind in _PLAIN or isinstance(value, (torch.dtype, torch.device)) or kind is torch.Size:
        return value
    if kind in (torch.Tensor, torch.nn.Parameter):
        return _alone(value.detach())
    if kind in (dict, collections.OrderedDict, collections.Counter):
        items = [(encode(key, where), encode(each, f"{where}[{key!r}]")) for key, each in value.items()]
        if kind is dict and _TAG not in value:
            return dict(items)
        return {_TAG: kind.__name__, "items": items}
    if kind in (list, tuple):
        return kind(encode(each, f"{where}[{index}]") for index, each in enumerate(value))
    if kind in (set, frozenset):
        return {_TAG: kind.__name__, "items": [encode(each, where) for each in value]}
    if kind in (bytes, bytearray):
        return {_TAG: kind.__name__, "data": _bytes(value)}
    numpy = sys.modules.get("numpy")
    scalar = numpy is not None and isinstance(value, numpy.generic)
    # Exactly an array: a matrix or a masked one is more than its numbers.
    if numpy is not None and (scalar or kind is numpy.ndarray) and value.dtype.kind in "biufc":
        return {
            _TAG: "numpy scalar" if scalar else "numpy",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": _bytes(numpy.ascontiguousarray(value).tobytes()),
        }
    raise CheckpointError(
        f"is a {kind.__module__}.{kind.__qualname__}, which only pickle can store",
        where=where,
        hint="let its state_dict() give numbers, text, tensors, lists and dicts",
    )


def decode(value: Any) -> Any:
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(decode(each) for each in value)
    if kind is not dict:
        return value
    tag = value.get(_TAG)
    if tag is None:
        return {decode(key): decode(each) for key, each in value.items()}
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode(each) for each in value["items"])
    if tag == "Counter":
        return collections.Counter(dict(decode(each) for each in value["items"]))
    data = ctypes.string_at(value["data"].data_ptr(), value["data"].numel())
    if tag == "bytes":
        return data
    if tag == "bytearray":
        return bytearray(data)
    import numpy

    array = numpy.frombuffer(data, dtype=value["dtype"]).reshape(value["shape"]).copy()
    return array[()] if tag == "numpy scalar" else array


_CONTAINERS: dict[str, Any] = {"dict": dict, "OrderedDict": collections.OrderedDict, "set": set, "frozenset": frozenset}


def _alone(tensor: Any) -> Any:
    """Without the rest of the storage that it may be a view of."""
    if tensor.layout is not _strided():
        return tensor
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def _strided() -> Any:
    import torch

    return torch.strided


def _bytes(data: Any) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
