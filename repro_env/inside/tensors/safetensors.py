"""Files of safetensors (its README, "Format")."""

import json
import struct

from .dtypes import KINDS
from .standins import Known, Order
from .tensor import Tensor, sized
from .unreadable import UnreadableError

_HEADER = 100 << 20
"""Bytes of a header (the format's own limit)."""


def safetensors(data: "memoryview") -> object:
    """A file as a dict. Raises `UnreadableError` where a byte belongs to no tensor, or to two, as the format asks."""
    if len(data) < 8:
        raise UnreadableError("is cut off")
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(_HEADER, len(data) - 8):
        raise UnreadableError("has a header that is longer than the file")
    header = json.loads(bytes(data[8 : 8 + size]).decode("utf-8"), object_pairs_hook=_once)
    body = data[8 + size :]
    made = {}  # type: dict[str, object]
    places = []
    for name, one in header.items():
        if name == "__metadata__":
            made[name] = one
            continue
        begin, end = one["data_offsets"]
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end <= len(body):
            raise UnreadableError("has a tensor outside of the file")
        places.append((begin, end, name))
        dtype, shape = one["dtype"], tuple(one["shape"])
        count = sized(shape)
        if dtype in KINDS and count * KINDS[dtype][0] != end - begin:
            raise UnreadableError("has a tensor of another size than its shape")
        if not isinstance(dtype, str):
            raise UnreadableError("has a tensor of no kind")
        facts = {key: one[key] for key in one if key not in ("dtype", "shape", "data_offsets")}
        made[name] = Tensor(dtype, shape, body[begin:end], facts)
    at = 0
    places.sort()
    for begin, end, _ in places:
        if begin != at:
            raise UnreadableError("has bytes that belong to no tensor, or to two")
        at = end
    if at != len(body):
        raise UnreadableError("has bytes after its last tensor")
    return Known(made, {"about data order": Order(name for *_, name in places)})


def _once(pairs: "list[tuple[str, object]]") -> "dict[str, object]":
    made = dict(pairs)
    if len(made) != len(pairs):
        raise UnreadableError("has a name twice in its header")
    return made
