"""Zip files: what torch.save writes (torch/serialization.py), .npz, and any other, member by member."""

import io
import struct
import zipfile

from .arrays import npy
from .pickles import Reader
from .tensor import Tensor
from .unreadable import UnreadableError


def zipped(data: "memoryview", archive: "zipfile.ZipFile") -> object:
    members = {info.filename: info for info in archive.infolist()}
    pickled = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickled) == 1 and not any(name.endswith("/constants.pkl") for name in members):
        top = pickled[0].partition("/")[0]
        if top + "/byteorder" in members and bytes(_member(data, archive, members[top + "/byteorder"])) != b"little":
            raise UnreadableError("was written on a big-endian machine")

        def storage(key: str) -> "memoryview":
            name = "%s/data/%s" % (top, key)
            if name not in members:
                raise UnreadableError("lacks the storage %s" % key)
            return _member(data, archive, members[name])

        return Reader(io.BytesIO(bytes(_member(data, archive, members[pickled[0]]))), storage).load()
    made = {}  # type: dict[str, object]
    for name, info in members.items():
        part = _member(data, archive, info)
        if bytes(part[:6]) == b"\x93NUMPY":
            made[name[:-4] if name.endswith(".npy") else name] = npy(part)
        else:  # TorchScript, a joined archive: each member by its bytes; the first folder is named after the file
            made["/" + name.partition("/")[2] if "/" in name else name] = Tensor("U8", (len(part),), part)
    return made


def _member(data: "memoryview", archive: "zipfile.ZipFile", info: "zipfile.ZipInfo") -> "memoryview":
    """What is in a zip, without a copy where it is stored as it is."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        return memoryview(archive.read(info))
    head = bytes(data[info.header_offset : info.header_offset + 30])
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        raise UnreadableError("has a damaged member")
    name, extra = struct.unpack("<HH", head[26:30])
    start = info.header_offset + 30 + name + extra
    if start + info.file_size > len(data):
        raise UnreadableError("is cut off")
    return data[start : start + info.file_size]
