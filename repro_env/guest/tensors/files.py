"""A file of tensors and other values, in the format that its name and its first bytes show."""

import bz2
import lzma
import mmap
import zipfile
import zlib
from typing import Any

from .archives import read_zip, utc
from .npy import MAGIC, read_npy
from .pickles import read_pickles
from .safetensors import read_safetensors
from .sqlite import MAGIC as DATABASE
from .sqlite import read_database
from .standins import Text, WithFacts
from .tensor import UnreadableError


def read(path: str) -> object:
    """A file as dicts, lists, tensors and plain values. Can raise any exception if the file is damaged."""
    data = _map(path)
    start = bytes(data[:8])
    if path.endswith(".safetensors"):
        return read_safetensors(data)
    if start == DATABASE:
        return read_database(path)
    if start[:6] == MAGIC:
        return read_npy(data)
    if start[:4] == b"PK\x03\x04":
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return read_zip(data, archive)
    plain, facts = decompress(data)
    return WithFacts(read_pickles(plain), facts)


def _map(path: str) -> "memoryview":
    with open(path, "rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def decompress(data: "memoryview") -> "tuple[memoryview, dict[str, object]]":
    """The file without compression, and facts about the compression; any format that joblib uses."""
    start = bytes(data[:6])
    decompressor: Any
    if start[:1] == b"\x78" and (start[0] * 256 + start[1]) % 31 == 0:
        algorithm, decompressor = "zlib", zlib.decompressobj()
    elif start[:2] == b"\x1f\x8b":
        algorithm, decompressor = "gzip", zlib.decompressobj(31)
    elif start[:3] == b"BZh":
        algorithm, decompressor = "bzip2", bz2.BZ2Decompressor()
    elif start == b"\xfd7zXZ\0" or start[:3] == b"\x5d\0\0":
        algorithm, decompressor = "lzma", lzma.LZMADecompressor()
    else:
        return data, {}
    facts = {"about compression": Text(algorithm)}  # type: dict[str, object]
    if algorithm == "gzip":  # RFC 1952, 2.3
        if data[3] & ~8:
            raise UnreadableError("has a gzip header with unsupported flags")
        facts["about time"] = utc(int.from_bytes(data[4:8], "little"))
        facts["about header"] = Text(bytes(data[8:10]).hex())
        if data[3]:
            facts["about file name"] = bytes(data[10 : 10 + 4096]).partition(b"\0")[0].decode("latin-1")
    plain = decompressor.decompress(data)
    if not decompressor.eof or decompressor.unused_data:
        raise UnreadableError("is cut off, or has bytes after its compressed data")
    return memoryview(plain), facts
