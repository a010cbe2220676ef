"""Write and read weights in the safetensors format (its README, "Format"): a length, a JSON header, and the tensors' bytes.

This module does not need the safetensors library, and the same weights always result in the same bytes.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from repro_env.checkpoint.errors import CheckpointError

_CODES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint64": "U64",
    "torch.uint32": "U32",
    "torch.uint16": "U16",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
}
_ALIASES = "repro_env.aliases"
_STEP = "repro_env.step"
_LONGEST = 100 << 20
"""Largest size of a header in bytes, as in the safetensors library."""


def is_storable(tensor: Any) -> bool:
    """Whether the format supports a tensor: a strided one of a supported dtype."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and str(tensor.dtype) in _CODES


def chunks(tensors: Mapping[str, Any], *, step: int) -> Iterator[Any]:
    """Yield the bytes of a file in chunks. Only one tensor at a time is copied to the CPU.

    A tensor with two names is written once, and its second name is stored in the metadata.
    """
    if sys.byteorder != "little":
        raise CheckpointError("weights can be saved only on a little-endian machine")
    aliases: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device))
        if tensor.numel() and first.setdefault(key, name) != name:
            aliases[name] = first[key]
    # The order of the safetensors library: the widest elements first, so that every tensor is aligned.
    names = sorted((name for name in tensors if name not in aliases), key=lambda name: (-tensors[name].element_size(), name))
    metadata = {"format": "pt", _STEP: str(step)}
    if aliases:
        metadata[_ALIASES] = json.dumps(aliases, sort_keys=True)
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _CODES[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        tensor = tensors[name].detach().cpu().contiguous()
        size = tensor.numel() * tensor.element_size()
        if size:
            yield memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def parse(data: bytearray, where: str) -> dict[str, Any]:
    """Return name -> tensor on the CPU; the tensors use the memory of `data`. Raises `CheckpointError` for an invalid file."""
    import torch

    types = {code: getattr(torch, name[6:]) for name, code in _CODES.items() if hasattr(torch, name[6:])}
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(_LONGEST, len(data) - 8):
        raise CheckpointError("this is not a safetensors file", where=where, hint="use another checkpoint")
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
        metadata = header.pop("__metadata__", {})
        tensors: dict[str, Any] = {}
        for name, entry in header.items():
            shape, (start, end) = [int(length) for length in entry["shape"]], entry["data_offsets"]
            dtype = types[entry["dtype"]]
            count = math.prod(shape)
            width = torch.empty((), dtype=dtype).element_size()
            if not 0 <= start <= end <= len(data) - 8 - size or end - start != count * width:
                raise ValueError(name)
            start += 8 + size
            if count == 0:
                tensors[name] = torch.empty(shape, dtype=dtype)
            elif start % width:  # another program wrote the file
                tensors[name] = torch.frombuffer(data[start : start + count * width], dtype=dtype).reshape(shape)
            else:
                tensors[name] = torch.frombuffer(data, dtype=dtype, count=count, offset=start).reshape(shape)
        for alias, name in json.loads(metadata.get(_ALIASES, "{}")).items():
            tensors[alias] = tensors[name]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise CheckpointError("the header of this file is invalid", where=where, hint="use another checkpoint") from error
    return tensors
