"""Zip files: what torch.save writes (torch/serialization.py), .npz, and any other, member by member."""

import io
import json
import os
import re
import stat
import struct
import zipfile
import zlib

from .joblibs import utc
from .npy import MAGIC, npy
from .older import stream
from .pickles import Reader
from .standins import Known, Lines, Number, Order, Parts, Text
from .tensor import Tensor
from .unreadable import UnreadableError

_TEXT = 16 << 20
"""Bytes of a member that is read as text; a larger one is compared as bytes."""
_LINES = 100000
_BINARY = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_METHODS = {0: "stored", 8: "deflated", 12: "bzip2", 14: "lzma"}
_TIMES = 0x5455
"""The extra field of an extended timestamp."""
_PACKING = (0x0001, 0x4246, 0xD935)
"""Extra fields: sizes of more than four bytes (zip64), and what torch and Android fill up with."""


def zipped(data: "memoryview", archive: zipfile.ZipFile) -> object:
    members = {info.filename: info for info in archive.infolist()}
    if len(members) != len(archive.infolist()):
        raise UnreadableError("has two members of one name")
    parts = {name: _Member(data, archive, info) for name, info in members.items()}
    facts = {"about comment": Text(repr(archive.comment))} if archive.comment else {}  # type: dict[str, object]
    between = _between(data, archive, list(parts.values()))
    if between:
        facts["about bytes between members"] = between
    pickled = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickled) == 1 and not any(name.endswith("/constants.pkl") for name in members):
        top = pickled[0].partition("/")[0]
        facts["about directory"] = _directory(archive, top)
        return _saved(parts, top, facts)
    top = _top(members)
    if top:
        facts["about directory"] = _directory(archive, top[:-1])
    made = Parts()
    for name, part in parts.items():
        if bytes(part.data[:6]) == MAGIC:
            # Without its suffix, as NumPy calls it.
            kind = "array" if name.endswith(".npy") and name[:-4] not in members else "file"
            made["%s %s" % (kind, name[len(top) :])] = Known(npy(part.data), part.facts)
        else:
            made["file " + name[len(top) :]] = Known(content(name, part.data), part.facts)
    return Known(made, facts)


def _top(members: "dict[str, zipfile.ZipInfo]") -> str:
    """The directory of all that torch's own writer packed (TorchScript, torch.export, torch.package): it is named after the file."""
    top = next(iter(members), "").partition("/")[0] + "/"
    ours = all(name.startswith(top) for name in members) and (top + "version" in members or top + ".data/version" in members)
    return top if ours else ""


def _directory(archive: zipfile.ZipFile, name: str) -> str:
    """What is said of the directory that all members are in."""
    stem = os.path.splitext(os.path.basename(str(archive.filename)))[0]
    return Text("named after the file") if name == stem else name


def _saved(parts: "dict[str, _Member]", top: str, facts: "dict[str, object]") -> object:
    """What torch.save wrote. Beside the object there is what is said of each member, and what no tensor is made of."""
    if top + "/byteorder" in parts and bytes(parts[top + "/byteorder"].data) != b"little":
        raise UnreadableError("was written on a big-endian machine")
    used = set()

    def storage(key: str, _: int) -> "memoryview":
        name = "%s/data/%s" % (top, key)
        if name not in parts:
            raise UnreadableError("lacks the storage %s" % key)
        used.add(name)
        return parts[name].data

    file = io.BytesIO(bytes(parts[top + "/data.pkl"].data))
    made = Reader(file, storage, stream).load()
    rest = file.read()
    facts = {**facts, "about member order": Order(name.partition("/")[2] for name in parts)}
    for whole, part in parts.items():
        name = whole[len(top) + 1 :]
        if not whole.startswith(top + "/"):
            facts["outside " + whole] = Known(content(whole, part.data), part.facts)
        elif whole in used:
            facts["storage " + name] = Parts(part.facts)
        elif (name == "data.pkl" and not rest) or name == ".data/serialization_id":  # a checksum of all others
            facts["file " + name] = Parts(part.facts)
        elif name == "data.pkl":
            facts["file " + name] = Known(whole_bytes(memoryview(rest)), part.facts)
        else:
            facts["file " + name] = Known(content(name, part.data), part.facts)
    return Known(made, facts)


def content(name: str, data: "memoryview") -> object:
    """A member that is no array: an object of JSON, the lines of a text, or bytes."""
    if not len(data) or len(data) > _TEXT:
        return whole_bytes(data)
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return whole_bytes(data)
    if name.endswith(".json"):
        try:
            return json.loads(text, object_pairs_hook=_once, parse_float=Number, parse_int=Number, parse_constant=Number)
        except (ValueError, RecursionError):
            pass  # it is compared as text
    if _BINARY.search(text) or text.count("\n") > _LINES:
        return whole_bytes(data)
    return Lines(text.split("\n"))


def _once(pairs: "list[tuple[str, object]]") -> "dict[str, object]":
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key is in one object twice")
    return made


def whole_bytes(data: "memoryview") -> Tensor:
    return Tensor("bytes", (len(data),), data)


class _Member:
    """A member: its bytes, without a copy where it is stored as it is, and what the archive says of it."""

    def __init__(self, data: "memoryview", archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.start = info.header_offset
        head = bytes(data[self.start : self.start + 30]) if self.start >= 0 else b""
        if len(head) < 30 or head[:4] != b"PK\x03\x04":
            raise UnreadableError("has a damaged member")
        needed, flags, method, clock, day, *sizes, size, more = struct.unpack("<HHHHHIIIHH", head[4:])
        begin = self.start + 30 + size + more
        self.end = begin + info.compress_size
        if self.end > len(data):
            raise UnreadableError("is cut off")
        if bytes(data[self.start + 30 : begin - more]) != _encoded(info):
            raise UnreadableError("has a member of two names")
        self.followed = bool(flags & 8)
        self.facts = _facts(info, bytes(data[begin - more : begin]))
        when = ((day >> 9) + 1980, day >> 5 & 15, day & 31, clock >> 11, clock >> 5 & 63, (clock & 31) * 2)
        right = (info.CRC, info.compress_size, info.file_size)
        equal = all(own in (number, 0xFFFFFFFF) for own, number in zip(sizes, right)) or (self.followed and not any(sizes))  # noqa: B905
        if (needed, flags, method, when) != (
            info.extract_version,
            info.flag_bits,
            info.compress_type,
            info.date_time,
        ) or not equal:
            self.facts["about local header"] = Text(head[4:26].hex())
        if info.compress_type != zipfile.ZIP_STORED or flags & 1:
            self.data = memoryview(archive.read(info))
            return
        self.data = data[begin : self.end]
        if len(self.data) != info.file_size:
            raise UnreadableError("has a damaged member")
        if zlib.crc32(self.data) != info.CRC:
            self.facts["about checksum"] = Text("wrong: %08x" % info.CRC)


def _encoded(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437")


def _facts(info: zipfile.ZipInfo, local: bytes) -> "dict[str, object]":
    """What an archive says of a member, in its directory and in the extra fields before the member."""
    high, low = divmod(info.external_attr, 1 << 16)
    made = {
        "about time": "%04d-%02d-%02d %02d:%02d:%02d" % info.date_time,
        "about mode": Text("%s %o" % (stat.filemode(high), high)),
        "about compression": Text(_METHODS.get(info.compress_type, str(info.compress_type))),
        "about attributes": Text(
            "system %d, versions %d and %d, flags %d, internal %d, external %d"
            % (info.create_system, info.create_version, info.extract_version, info.flag_bits, info.internal_attr, low)
        ),
    }  # type: dict[str, object]
    if info.comment:
        made["about comment"] = Text(repr(info.comment))
    others = []
    for extra in (local, info.extra):
        while extra:
            kind, size = struct.unpack("<HH", extra[:4]) if len(extra) >= 4 else (-1, len(extra))
            field, extra = extra[: 4 + size], extra[4 + size :]
            times = _times(field[4:]) if kind == _TIMES else {}
            if times and all(made.setdefault(name, when) == when for name, when in times.items()):
                continue
            if kind not in _PACKING or (kind != 1 and field[4:].strip(b"\0Z")):
                others.append(field.hex())
    if others:
        made["about extra"] = Text(" ".join(others))
    return made


def _times(field: bytes) -> "dict[str, str]":
    """The times of an extended timestamp: flags, then seconds in UTC of each kind of time that the flags name."""
    made = {}
    seconds = [struct.unpack("<i", field[at : at + 4])[0] for at in range(1, len(field) - 3, 4)]
    for name, second in zip(("mtime", "atime", "ctime"), seconds):  # noqa: B905
        made["about " + name] = utc(second)
    return made if len(field) == 1 + 4 * len(seconds) and field[0] == 7 >> (3 - len(seconds)) else {}


def _between(data: "memoryview", archive: zipfile.ZipFile, members: "list[_Member]") -> bytes:
    """The bytes of an archive that belong to no member and not to its directory."""
    end = len(data) - 22 - len(archive.comment)
    if bytes(data[max(end, 0) : end + 4]) != b"PK\x05\x06":
        raise UnreadableError("has bytes after its archive")
    at, found, followed = 0, b"", False
    start = archive.start_dir
    for begin, stop, more in [*sorted((each.start, each.end, each.followed) for each in members), (start, start, False)]:
        if begin < at:
            raise UnreadableError("has members that overlap")
        if not (followed and begin - at in (12, 16, 20, 24)):  # sizes and a checksum
            found += bytes(data[at:begin])
        at, followed = stop, more
    at += sum(46 + len(_encoded(info)) + len(info.extra) + len(info.comment) for info in archive.infolist())
    if not (end - at == 76 and bytes(data[at : at + 4]) == b"PK\x06\x06"):  # zip64
        found += bytes(data[at:end])
    return found
