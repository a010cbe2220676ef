"""Files of safetensors (its README, "Format")."""

import json
import struct

from .standins import Order, WithFacts
from .tensor import KINDS, Tensor, UnreadableError, size_of

_HEADER = 100 << 20
"""Bytes of a header (the format's own limit)."""


def read_safetensors(data: "memoryview") -> object:
    """A file as a dict. Raises `UnreadableError` for a byte that belongs to no tensor or to two, which the format forbids."""
    if len(data) < 8:
        raise UnreadableError("is cut off")
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(_HEADER, len(data) - 8):
        raise UnreadableError("has a header that is longer than the file")
    header = json.loads(bytes(data[8 : 8 + size]).decode("utf-8"), object_pairs_hook=unique_keys)
    body = data[8 + size :]
    tensors = {}  # type: dict[str, object]
    ranges = []
    for name, entry in header.items():
        if name == "__metadata__":
            tensors[name] = entry
            continue
        begin, end = entry["data_offsets"]
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= len(body):
            raise UnreadableError("has a tensor outside of the file")
        ranges.append((begin, end, name))
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        count = size_of(shape)
        if dtype in KINDS and count * KINDS[dtype][0] != end - begin:
            raise UnreadableError("has a tensor whose size differs from its shape")
        if not isinstance(dtype, str):
            raise UnreadableError("has a tensor without a dtype")
        facts = {key: entry[key] for key in entry if key not in ("dtype", "shape", "data_offsets")}
        tensors[name] = Tensor(dtype, shape, body[begin:end], facts)
    at = 0
    ranges.sort()
    for begin, end, _ in [*ranges, (len(body), len(body), "")]:
        if begin != at:
            raise UnreadableError("has bytes that belong to no tensor or to two")
        at = end
    return WithFacts(tensors, {"about data order": Order("key " + name for *_, name in ranges)})


def unique_keys(pairs: "list[tuple[str, object]]") -> "dict[str, object]":
    """The dict of a JSON object. Raises `UnreadableError` if two keys are equal."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise UnreadableError("has the same key twice in a JSON object")
    return result
