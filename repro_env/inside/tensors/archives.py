"""Zip files: what torch.save writes (torch/serialization.py), .npz, and any other, member by member."""

import io
import struct
import zipfile

from .libraries import skops, told
from .npy import MAGIC, npy
from .older import stream
from .pickles import Reader
from .tensor import Tensor
from .unreadable import UnreadableError

_ABOUT = ("byteorder", "version", ".format_version", ".storage_alignment", ".data/serialization_id")
"""What torch writes of the file itself."""


def zipped(data: "memoryview", archive: zipfile.ZipFile) -> object:
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise UnreadableError("has two members of one name")
    end = len(data) - 22 - len(archive.comment)
    if bytes(data[max(end, 0) : end + 4]) != b"PK\x05\x06" or (members and min(one.header_offset for one in members.values())):
        raise UnreadableError("has bytes before or after its archive")
    pickled = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickled) == 1 and not any(name.endswith("/constants.pkl") for name in members):
        return _saved(data, archive, members, pickled[0].partition("/")[0])
    top = _top(members)
    made = {}  # type: dict[str, object]
    called = {}  # type: dict[str, str]
    if "schema.json" in members:
        made["schema.json"], called = skops(_member(data, archive, members.pop("schema.json")))
    for whole, info in members.items():
        part = _member(data, archive, info)
        stem, dot, suffix = whole.partition(".")
        name = called.get(stem, stem) + dot + suffix
        if name != whole and (name in members or name in made):
            raise UnreadableError("has two members of one name")
        if bytes(part[:6]) == MAGIC:
            made[name[:-4] if name.endswith(".npy") and name[:-4] not in members else name] = npy(part)
        else:
            made[name[len(top) :]] = told(name, members, part)
    return made


def _top(members: "dict[str, zipfile.ZipInfo]") -> str:
    """The folder of all that torch's own writer packed (TorchScript, torch.export, torch.package): it is named after the file."""
    top = next(iter(members), "").partition("/")[0] + "/"
    ours = all(name.startswith(top) for name in members) and (top + "version" in members or top + ".data/version" in members)
    return top[:-1] if ours else ""


def _saved(data: "memoryview", archive: zipfile.ZipFile, members: "dict[str, zipfile.ZipInfo]", top: str) -> object:
    if top + "/byteorder" in members and bytes(_member(data, archive, members[top + "/byteorder"])) != b"little":
        raise UnreadableError("was written on a big-endian machine")
    left = {name for name in members if name not in {"%s/%s" % (top, one) for one in (*_ABOUT, "data.pkl")}}
    held = {}  # type: dict[str, memoryview]

    def storage(key: str, _: int) -> "memoryview":
        name = "%s/data/%s" % (top, key)
        if name not in members:
            raise UnreadableError("lacks the storage %s" % key)
        left.discard(name)
        if name not in held:
            held[name] = _member(data, archive, members[name])
        return held[name]

    file = io.BytesIO(bytes(_member(data, archive, members[top + "/data.pkl"])))
    made = Reader(file, storage, stream).load()
    more = {name.partition("/")[2]: _member(data, archive, members[name]) for name in sorted(left)}
    rest = file.read()
    if rest:
        more["data.pkl"] = memoryview(rest)
    # What no tensor is made of counts all the same.
    return [made, {name: Tensor("bytes", (len(part),), part) for name, part in more.items()}] if more else made


def _member(data: "memoryview", archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> "memoryview":
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
