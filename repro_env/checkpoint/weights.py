"""Weights in the safetensors format (its README, "Format"): a length, a header in JSON, and the tensors' bytes.

Our own writer, so that nothing has to be installed and the same weights are the same bytes.
"""

from __future__ import annotations

import ctypes
import json
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
"""Bytes of a header, as the safetensors library has it."""


def storable(tensor: Any) -> bool:
    """Whether the format knows such a tensor: a plain one, of a type that it has a name for."""
    import torch

    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and str(tensor.dtype) in _CODES


def chunks(tensors: Mapping[str, Any], *, step: int) -> Iterator[Any]:
    """The bytes of a file, piece by piece: one tensor at a time is copied to the CPU.

    A tensor under two names is written once; the second name is told in the metadata.
    """
    if sys.byteorder != "little":
        raise CheckpointError("weights are little-endian, and this machine is not")
    aliases: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype), str(tensor.device))
        if tensor.numel() and first.setdefault(key, name) != name:
            aliases[name] = first[key]
    # As the library orders them: the widest first, so that each lies at a multiple of its own width.
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
    """Name -> tensor on the CPU, in memory that `data` owns. Raises `CheckpointError` for what is no such file."""
    import torch

    types = {code: getattr(torch, name[6:]) for name, code in _CODES.items() if hasattr(torch, name[6:])}
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(_LONGEST, len(data) - 8):
        raise CheckpointError("is no safetensors file", where=where)
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
        metadata = header.pop("__metadata__", {})
        found: dict[str, Any] = {}
        for name, entry in header.items():
            shape, (start, end) = [int(each) for each in entry["shape"]], entry["data_offsets"]
            kind = types[entry["dtype"]]
            count = 1
            for each in shape:
                count *= each
            width = torch.empty((), dtype=kind).element_size()
            if not 0 <= start <= end <= len(data) - 8 - size or end - start != count * width:
                raise ValueError(name)
            start += 8 + size
            if count == 0:
                found[name] = torch.empty(shape, dtype=kind)
            elif start % width:  # of another writer
                found[name] = torch.frombuffer(data[start : start + count * width], dtype=kind).reshape(shape)
            else:
                found[name] = torch.frombuffer(data, dtype=kind, count=count, offset=start).reshape(shape)
        for name, other in json.loads(metadata.get(_ALIASES, "{}")).items():
            found[name] = found[other]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise CheckpointError("its header cannot be understood", where=where) from error
    return found
