"""A file of tensors and other values, by what its name and its first bytes say it is."""

import mmap
import zipfile

from .archives import zipped
from .joblibs import unpacked
from .npy import MAGIC, npy
from .older import stream
from .safetensors import safetensors
from .sqlite import MAGIC as DATABASE
from .sqlite import database
from .standins import Known


def read(path: str) -> object:
    """A file as dicts, lists, tensors and plain values. Raises whatever the bytes make it raise."""
    data = _mapped(path)
    start = bytes(data[:8])
    if path.endswith(".safetensors"):
        return safetensors(data)
    if start == DATABASE:
        return database(path)
    if start[:6] == MAGIC:
        return npy(data)
    if start[:4] == b"PK\x03\x04":
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            return zipped(data, archive)
    plain, facts = unpacked(data)
    return Known(stream(plain), facts)


def _mapped(path: str) -> "memoryview":
    with open(path, "rb") as file:
        file.seek(0, 2)
        if file.tell() == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
