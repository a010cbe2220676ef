"""Convert states to and from values that `torch.load(weights_only=True)` accepts, so that loading cannot run code."""

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
"""A dict with this key represents a value whose type the format does not support."""
_PLAIN = (type(None), bool, int, float, str)


_ZIP = b"PK\x03\x04"


def load(opened: Opened, name: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Load a file of values. Each call returns new values, because `load_state_dict` may keep and change the tensors.

    `kinds`: the required keys and their types. Raises `CheckpointError`.

    No code in the file is executed. Only torch's current file format is accepted: for older formats, torch before 2.6
    executed code even with `weights_only` (CVE-2025-32434).
    """
    import torch

    where, data = os.path.join(opened.path, name), opened.read(name)
    if data[:4] != _ZIP:
        raise CheckpointError("this file is not in torch's current format", where=where, hint=_FOREIGN)
    try:
        values = decode(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except pickle.UnpicklingError as error:
        # torch's own message explains how to run the code.
        name = next(iter(re.findall(r"(?:GLOBAL|[Uu]nsupported \w+):? (\w+\.[\w.]+)", str(error))), "")
        what = f"this file contains more than numbers, text and tensors{f' ({name})' if name else ''}; it was not executed"
        raise CheckpointError(what, where=where, hint=_FOREIGN) from None
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as error:
        raise CheckpointError(f"this file cannot be loaded: {error}", where=where, hint="use another checkpoint") from error
    for key, kind in kinds.items():
        if not isinstance(values, dict) or not isinstance(values.get(key), kind):
            raise CheckpointError(f"{key} is missing or has the wrong type", where=where, hint="use another checkpoint")
    return dict(values)


_FOREIGN = "use another checkpoint: repro-env did not write this one"


def encode(value: Any, where: str) -> Any:
    """Encode a value. `where` names it in errors. Raises `CheckpointError` for a type that only pickle can store."""
    import torch

    kind = type(value)
    if kind in _PLAIN:
        return value
    # Torch 2.0 can save the following types, but cannot load them.
    if kind is complex:
        return {_TAG: "complex", "items": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "name": str(value)[6:]}
    if isinstance(value, torch.device):
        return {_TAG: "device", "name": str(value)}
    if kind is torch.Size:
        return {_TAG: "Size", "items": list(value)}
    if kind in (torch.Tensor, torch.nn.Parameter):
        return _without_storage(value.detach())
    if kind in (dict, collections.OrderedDict, collections.Counter):
        items = [(encode(key, where), encode(item, f"{where}[{key!r}]")) for key, item in value.items()]
        if kind is dict and _TAG not in value:
            return dict(items)
        return {_TAG: kind.__name__, "items": items}
    if kind in (list, tuple):
        return kind(encode(item, f"{where}[{index}]") for index, item in enumerate(value))
    if kind in (set, frozenset):
        return {_TAG: kind.__name__, "items": [encode(item, where) for item in value]}
    if kind in (bytes, bytearray):
        return {_TAG: kind.__name__, "data": _bytes(value)}
    numpy = sys.modules.get("numpy")
    is_scalar = numpy is not None and isinstance(value, numpy.generic)
    # Subclasses of arrays, such as masked arrays, are not supported, because they have more than numbers.
    if numpy is not None and (is_scalar or kind is numpy.ndarray) and value.dtype.kind in "biufc":
        return {
            _TAG: "numpy scalar" if is_scalar else "numpy",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": _bytes(numpy.ascontiguousarray(value).tobytes()),
        }
    raise CheckpointError(
        f"a value of type {kind.__module__}.{kind.__qualname__} cannot be saved without pickle",
        where=where,
        hint="return only numbers, text, tensors, lists and dicts from state_dict()",
    )


def decode(value: Any) -> Any:
    """Undo `encode`."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(decode(item) for item in value)
    if kind is not dict:
        return value
    tag = value.get(_TAG)
    if tag is None:
        return {decode(key): decode(item) for key, item in value.items()}
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode(item) for item in value["items"])
    if tag == "Counter":
        return collections.Counter(dict(decode(item) for item in value["items"]))
    if tag == "complex":
        return complex(*value["items"])
    if tag in ("dtype", "device", "Size"):
        return _decode_torch(tag, value)
    data = _plain_bytes(value["data"])
    if tag == "bytes":
        return data
    if tag == "bytearray":
        return bytearray(data)
    import numpy

    array = numpy.frombuffer(data, dtype=value["dtype"]).reshape(value["shape"]).copy()
    return array[()] if tag == "numpy scalar" else array


_CONTAINERS: dict[str, Any] = {"dict": dict, "OrderedDict": collections.OrderedDict, "set": set, "frozenset": frozenset}


def _decode_torch(tag: str, value: Any) -> Any:
    import torch

    if tag == "Size":
        return torch.Size(value["items"])
    if tag == "device":
        return torch.device(value["name"])
    dtype = getattr(torch, value["name"])
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{value['name']} is not a dtype")
    return dtype


def _plain_bytes(tensor: Any) -> bytes:
    """Return the bytes of a tensor in an untrusted file. A view may be larger than its memory, so it is copied first."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.dtype != torch.uint8 or tensor.device.type != "cpu":
        raise ValueError("the tensor for bytes is invalid")
    flat = tensor.contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel()) if flat.numel() else b""


def _without_storage(tensor: Any) -> Any:
    """Copy a tensor if it is a view, because torch would save the complete storage."""
    import torch

    if tensor.layout is not torch.strided:
        return tensor
    is_complete = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if is_complete else tensor.clone()


def _bytes(data: Any) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
