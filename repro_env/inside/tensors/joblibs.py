"""What `joblib.dump` leaves: a pickle in which the bytes of each array follow its description (joblib/numpy_pickle.py)."""

import bz2
import lzma
import pickle
import re
import time
import zlib
from typing import Any, Callable, ClassVar

from .arrays import code_of
from .pickles import Reader, named
from .standins import Array, Dtype, Opaque, Text, opaque
from .tensor import sized
from .unreadable import UnreadableError

_NAME = "NumpyArrayWrapper"


def unpacked(data: "memoryview") -> "tuple[memoryview, dict[str, object]]":
    """Without the compression that joblib knows, and what is said of it; as it is where there is none."""
    start = bytes(data[:6])
    if start[:1] == b"\x78" and (start[0] * 256 + start[1]) % 31 == 0:
        how, unpacker = "zlib", zlib.decompressobj()  # type: tuple[str, Any]
    elif start[:2] == b"\x1f\x8b":
        how, unpacker = "gzip", zlib.decompressobj(31)
    elif start[:3] == b"BZh":
        how, unpacker = "bzip2", bz2.BZ2Decompressor()
    elif start == b"\xfd7zXZ\0" or start[:3] == b"\x5d\0\0":
        how, unpacker = "lzma", lzma.LZMADecompressor()
    else:
        return data, {}
    facts = {"about compression": Text(how)}  # type: dict[str, object]
    if how == "gzip":  # RFC 1952, 2.3
        if data[3] & ~8:
            raise UnreadableError("has a header of gzip that is not read here")
        facts["about time"] = utc(int.from_bytes(data[4:8], "little"))
        facts["about header"] = Text(bytes(data[8:10]).hex())
        if data[3]:
            facts["about file name"] = bytes(data[10 : 10 + 4096]).partition(b"\0")[0].decode("latin-1")
    return memoryview(_whole(unpacker, data)), facts


def utc(second: int) -> str:
    """A time in seconds since 1970, as `YYYY-MM-DD HH:MM:SS`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))


def _whole(one: Any, data: "memoryview") -> bytes:
    made: bytes = one.decompress(data)
    if not one.eof or one.unused_data:
        raise UnreadableError("is cut off, or has bytes after what was compressed")
    return made


_Slow = pickle.__dict__["_Unpickler"]  # type: Any


class Joblib(_Slow):  # type: ignore[misc]
    """The unpickler of Python's own code: the faster one cannot be stopped where an array follows."""

    def __init__(self, data: "memoryview", file: Any, nested: "Callable[[memoryview], object]") -> None:
        """`nested`: as of a `Reader`."""
        _Slow.__init__(self, file, encoding="utf-8", errors="surrogateescape")
        self._data = data
        self._from = file
        self._nested = nested

    def find_class(self, module: str, name: str) -> Any:
        if module == "joblib.numpy_pickle" and name != _NAME:
            raise UnreadableError("was written by a joblib that is not known here")
        return opaque(_NAME) if module == "joblib.numpy_pickle" else named(module, name, self._nested)

    def persistent_load(self, pid: object) -> object:
        return opaque("persistent")(pid)

    def load_build(self) -> None:
        _Slow.load_build(self)
        one = self.stack[-1]
        if isinstance(one, Opaque) and one.name == _NAME:
            self.stack[-1] = self._array(one)

    dispatch: ClassVar[Any] = dict(_Slow.dispatch)
    dispatch[pickle.BUILD[0]] = load_build

    def _array(self, one: Opaque) -> object:
        about = next((value for kind, value in one.__dict__["parts"] if kind == "state"), None)
        if not isinstance(about, dict) or not isinstance(about.get("dtype"), Dtype) or not isinstance(about.get("shape"), tuple):
            raise UnreadableError("has an array of joblib's that is not described")
        dtype, shape = about["dtype"], about["shape"]
        found = re.fullmatch(r"[<>|]([a-zA-Z])(\d+)", code_of(dtype) or "")
        if found is None:
            raise UnreadableError("has an array of joblib's of an unknown kind")
        kind = getattr(about.get("subclass"), "name", "numpy.ndarray")
        made = Array() if kind in ("numpy.ndarray", "numpy.memmap") else Array(Text(kind))
        if found.group(1) == "O":
            return opaque("numpy.ndarray of objects")(Reader(self._from, nested=self._nested).load())
        if about.get("numpy_array_alignment_bytes") is not None:
            self._from.seek(self._from.read(1)[0], 1)
        at, size = self._from.tell(), int(found.group(2)) * (4 if found.group(1) == "U" else 1) * sized(shape)
        if at + size > len(self._data):
            raise UnreadableError("is cut off")
        self._from.seek(at + size)
        made.__setstate__((1, shape, dtype, about.get("order") == "F", bytes(self._data[at : at + size])))
        return made
