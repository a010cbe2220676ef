"""Files of safetensors (its README, "Format")."""

import json
import math
import struct

from .dtypes import KINDS
from .tensor import Tensor
from .unreadable import UnreadableError

_HEADER = 100 << 20
"""Bytes of a safetensors header (the format's own limit)."""


def safetensors(data: "memoryview") -> object:
    if len(data) < 8:
        raise UnreadableError("is cut off")
    (size,) = struct.unpack("<Q", data[:8])
    if size > min(_HEADER, len(data) - 8):
        raise UnreadableError("has a header that is longer than the file")
    header = json.loads(bytes(data[8 : 8 + size]).decode("utf-8"))
    made = {}  # type: dict[str, object]
    for name, one in header.items():
        if name == "__metadata__":
            made[name] = one
            continue
        begin, end = one["data_offsets"]
        if not 0 <= begin <= end <= len(data) - 8 - size:
            raise UnreadableError("has a tensor outside of the file")
        # Kinds that are not known here are compared as bytes.
        known = one["dtype"] in KINDS
        part = data[8 + size + begin : 8 + size + end]
        if known and math.prod(one["shape"]) * KINDS[one["dtype"]][0] != end - begin:
            raise UnreadableError("has a tensor of another size than its shape")
        made[name] = Tensor(one["dtype"] if known else "U8", tuple(one["shape"]) if known else (end - begin,), part)
    return made
