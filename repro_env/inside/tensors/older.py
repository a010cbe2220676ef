"""Pickles one after the other in a file, as `pickle.dump` leaves them, and what torch.save wrote before its zip format.

The latter is three pickles of what it is (a magic number, the protocol, the machine), one of the object, one of the keys of its
storages, and these: a count of elements in 8 bytes, and the elements (torch/serialization.py, `_legacy_save`).
"""

import io
import mmap
import struct
from typing import Any

from .joblibs import Joblib
from .pickles import JoblibError, Reader
from .standins import Opaque
from .unreadable import UnreadableError

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001


def stream(data: "memoryview") -> object:
    """Everything that was pickled into a file; a list where it is more than one thing."""
    # A mapped file is read as it lies there; NumPy's and torch's own strings of bytes are small.
    file = data.obj if isinstance(data.obj, mmap.mmap) and len(data.obj) == len(data) else io.BytesIO(data)
    file.seek(0)
    found = []
    while file.tell() < len(data):
        start = file.tell()
        try:
            one = Reader(file, nested=stream).load()
        except JoblibError:
            file.seek(start)
            one = Joblib(data, file, stream).load()
        found.append(_older(file, data) if type(one) is int and one == _MAGIC else one)
    if not found:
        raise UnreadableError("is empty")
    return found[0] if len(found) == 1 else found


def _older(file: Any, data: "memoryview") -> object:
    if Reader(file).load() != _PROTOCOL:
        raise UnreadableError("is of an unknown version of torch's format")
    machine = Reader(file).load()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise UnreadableError("was written on a big-endian machine")
    start = file.tell()
    widths = {}  # type: dict[str, int]

    def ask(key: str, width: int) -> "memoryview":
        if widths.setdefault(key, width) != width:
            raise UnreadableError("has a storage of two kinds")
        raise _LaterError

    _First(file, ask, stream).load()
    keys = Reader(file).load()
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(widths):
        raise UnreadableError("lacks some of its storages")
    held = {}
    at = file.tell()
    for key in map(str, keys):
        if at + 8 > len(data):
            raise UnreadableError("is cut off")
        (count,) = struct.unpack("<q", data[at : at + 8])
        end = at + 8 + count * widths[key]
        if count < 0 or end > len(data):
            raise UnreadableError("is cut off")
        held[key] = data[at + 8 : end]
        at = end
    file.seek(start)
    made = Reader(file, lambda key, _: held[key], stream).load()
    file.seek(at)
    return made


class _LaterError(Exception):
    """A storage's bytes come after the object."""


class _First(Reader):
    """Learns which storages there are; what is made of them is not needed."""

    def persistent_load(self, pid: object) -> object:
        try:
            return Reader.persistent_load(self, pid)
        except _LaterError:
            return Opaque()
