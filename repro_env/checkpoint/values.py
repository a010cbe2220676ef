"""Any state -> what `torch.load(weights_only=True)` takes, and back. Nothing is pickled that could run code."""

from __future__ import annotations

import collections
import ctypes
import io
import os
import pickle
import re
import sys
from collections.abc import Mapping
from typing import Any

from repro_env.checkpoint.errors import CheckpointError
from repro_env.checkpoint.manifest import Opened

_TAG = "repro-env"
"""A dict with this key stands for something that the format has no type for."""
_PLAIN = (type(None), bool, int, float, str)


_ZIP = b"PK\x03\x04"


def load(opened: Opened, name: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """A file of values, each time anew: what loads a state may keep its tensors and change them. Raises `CheckpointError`.

    `kinds`: what has to be in it, and of which types.

    No code of the file runs. Only torch's present format is looked at: in its older ones, torch before 2.6 ran code even
    with `weights_only` (CVE-2025-32434).
    """
    import torch

    where, data = os.path.join(opened.path, name), opened.read(name)
    if data[:4] != _ZIP:
        raise CheckpointError("is no file of values", where=where, hint="take another checkpoint: this one was not written here")
    try:
        found = decode(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        # What torch says at this place is how to run it nevertheless.
        found = next(iter(re.findall(r"(?:GLOBAL|[Uu]nsupported \w+):? (\w+\.[\w.]+)", str(error))), "")
        raise CheckpointError(
            f"holds more than numbers, text and tensors{f' ({found})' if found else ''}; none of it was run",
            where=where,
            hint="take another checkpoint: this one was not written here",
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise CheckpointError(f"cannot be loaded: {error}", where=where, hint="take another checkpoint") from error
    for key, kind in kinds.items():
        if not isinstance(found, dict) or not isinstance(found.get(key), kind):
            raise CheckpointError(f"{key} is missing or of another type", where=where, hint="take another checkpoint")
    return dict(found)


def encode(value: Any, where: str) -> Any:
    """`where` names the value in an error. Raises `CheckpointError` for what can only be pickled."""
    import torch

    kind = type(value)
    if kind in _PLAIN:
        return value
    # Torch 2.0 writes these and does not load them again.
    if kind is complex:
        return {_TAG: "complex", "items": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "name": str(value)[6:]}
    if isinstance(value, torch.device):
        return {_TAG: "device", "name": str(value)}
    if kind is torch.Size:
        return {_TAG: "Size", "items": list(value)}
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
    if tag == "complex":
        return complex(*value["items"])
    if tag in ("dtype", "device", "Size"):
        return _of_torch(tag, value)
    data = _plain_bytes(value["data"])
    if tag == "bytes":
        return data
    if tag == "bytearray":
        return bytearray(data)
    import numpy

    array = numpy.frombuffer(data, dtype=value["dtype"]).reshape(value["shape"]).copy()
    return array[()] if tag == "numpy scalar" else array


_CONTAINERS: dict[str, Any] = {"dict": dict, "OrderedDict": collections.OrderedDict, "set": set, "frozenset": frozenset}


def _of_torch(tag: str, value: Any) -> Any:
    import torch

    if tag == "Size":
        return torch.Size(value["items"])
    if tag == "device":
        return torch.device(value["name"])
    found = getattr(torch, value["name"])
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{value['name']} is no dtype")
    return found


def _plain_bytes(tensor: Any) -> bytes:
    """Of a file that anyone may have written: a view that says more than its memory holds is copied first."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.dtype != torch.uint8 or tensor.device.type != "cpu":
        raise ValueError("bytes are not what they say")
    flat = tensor.contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel()) if flat.numel() else b""


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
