"""Zip files, member by member: files of torch.save (torch/serialization.py), .npz, and any other."""

import io
import json
import os
import re
import stat
import struct
import time
import zipfile
import zlib
from typing import Iterable

from .npy import MAGIC, read_npy
from .pickles import Reader
from .safetensors import unique_keys
from .standins import Lines, Number, Order, Parts, Text, WithFacts
from .tensor import UnreadableError

_TEXT = 16 << 20
"""Bytes of a member that is read as text; a larger one is compared as bytes."""
_LINES = 100000
_BINARY = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PADDING = (0x4246, 0xD935)
"""Extra fields with which torch and Android align a member."""


def read_zip(data: "memoryview", archive: zipfile.ZipFile) -> object:
    """The members of an archive by name, or the object that torch saved in it, with the headers of the members."""
    members, at = {}, archive.start_dir
    for info in archive.infolist():
        end = at + 46 + sum(struct.unpack("<HHH", data[at + 28 : at + 34]))
        if info.filename in members:
            raise UnreadableError("has two members of the same name")
        members[info.filename] = _Member(data, archive, info, bytes(data[at:end]))
        at = end
    _check_layout(data, archive, members.values())
    facts = {"about comment": Text(repr(archive.comment))} if archive.comment else {}  # type: dict[str, object]
    top = _top(members)
    if top:
        stem = os.path.splitext(os.path.basename(str(archive.filename)))[0]
        facts["about directory"] = Text("named after the file") if top == stem + "/" else top[:-1]
    if top and top + "data.pkl" in members and top + "constants.pkl" not in members:
        return _read_torch(members, top, facts)
    result = Parts()
    for name, member in members.items():
        if bytes(member.data[:6]) == MAGIC:
            # NumPy shows the name without its suffix.
            kind = "array" if name.endswith(".npy") and name[:-4] not in members else "file"
            result["%s %s" % (kind, name[len(top) :])] = WithFacts(read_npy(member.data), member.facts)
        else:
            result["file " + name[len(top) :]] = WithFacts(_content(name, member.data), member.facts)
    return WithFacts(result, facts)


def _top(members: "dict[str, _Member]") -> str:
    """The directory of all members, which torch names after the file; empty in an archive that torch did not write."""
    top = next(iter(members), "").partition("/")[0] + "/"
    named = any(top + name in members for name in ("data.pkl", "version", ".data/version"))
    return top if named and all(name.startswith(top) for name in members) else ""


def _read_torch(members: "dict[str, _Member]", top: str, facts: "dict[str, object]") -> WithFacts:
    """The object of an archive that torch.save wrote, with the headers of all members and the content of the other members."""
    used = set()

    def storage(key: str, *_: int) -> "memoryview":
        name = "%sdata/%s" % (top, key)
        if name not in members:
            raise UnreadableError("has no storage %s" % key)
        used.add(name)
        return members[name].data

    if top + "byteorder" in members and bytes(members[top + "byteorder"].data) != b"little":
        raise UnreadableError("was written on a big-endian machine")
    file = io.BytesIO(bytes(members[top + "data.pkl"].data))
    value = Reader(file, storage).load()
    if file.read(1):
        raise UnreadableError("has bytes after its pickle")
    read = (top + "data.pkl", top + ".data/serialization_id")  # the second is a checksum of the other members
    files = {}
    for name, member in members.items():
        content = Parts() if name in used or name in read else _content(name, member.data)
        files["%s %s" % ("storage" if name in used else "file", name[len(top) :])] = WithFacts(content, member.facts)
    return WithFacts(value, {**facts, **files, "about member order": Order(files)})


def _content(name: str, data: "memoryview") -> object:
    """A member that is not an array: an object of JSON, the lines of a text, or bytes."""
    if not len(data) or len(data) > _TEXT:
        return data
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return data
    if name.endswith(".json"):
        try:
            return json.loads(text, object_pairs_hook=unique_keys, parse_float=Number, parse_int=Number, parse_constant=Number)
        except (ValueError, RecursionError, UnreadableError):
            pass  # compared as text
    return data if _BINARY.search(text) or text.count("\n") > _LINES else Lines(text.split("\n"))


class _Member:
    """A member of an archive: its bytes, without a copy if it is not compressed, and the facts in its headers.

    `entry`: its header in the directory of the archive. Another header precedes the bytes.
    """

    def __init__(self, data: "memoryview", archive: zipfile.ZipFile, info: zipfile.ZipInfo, entry: bytes) -> None:
        self.start = info.header_offset
        head = bytes(data[self.start : self.start + 30]) if self.start >= 0 else b""
        if len(head) < 30 or head[:4] != b"PK\x03\x04":
            raise UnreadableError("has a damaged member")
        name_size, extra_size = struct.unpack("<HH", head[26:])
        head = bytes(data[self.start : self.start + 30 + name_size + extra_size])
        if head[26:28] != entry[28:30] or head[30 : 30 + name_size] != entry[46 : 46 + name_size]:
            raise UnreadableError("has a member with two names")
        begin = self.start + len(head)
        self.end = begin + info.compress_size
        if self.end > len(data):
            raise UnreadableError("is cut off")
        # Sizes and a checksum may follow the bytes.
        self.gaps = (0, 12, 16, 20, 24) if info.flag_bits & 8 else (0,)
        self.facts = _facts(info, head, entry)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            self.data = memoryview(archive.read(info))
            return
        self.data = data[begin : self.end]
        if len(self.data) != info.file_size:
            raise UnreadableError("has a damaged member")
        if zlib.crc32(self.data) != info.CRC:
            self.facts["about checksum"] = Text("wrong: %08x" % info.CRC)


def _facts(info: zipfile.ZipInfo, head: bytes, entry: bytes) -> "dict[str, object]":
    """The times in the two headers of a member, and one text for all other fields except the sizes, the checksum and the offset."""
    facts = {"about time": "%04d-%02d-%02d %02d:%02d:%02d" % info.date_time}  # type: dict[str, object]
    high, low = divmod(info.external_attr, 1 << 16)
    header = "mode %s %o, method %d, system %d, versions %d and %d, flags %d, attributes %d and %d" % (
        *(stat.filemode(high), high, info.compress_type, info.create_system),
        *(info.create_version, info.extract_version, info.flag_bits, info.internal_attr, low),
    )
    # The header before the bytes has the checksum and the sizes, or zeros, or sizes of more than four bytes in an extra field.
    sizes = {bytes(12): ", sizes later", entry[16:20] + b"\xff" * 8: ", sizes of zip64", entry[16:28]: ""}
    header += sizes.get(head[14:26], ", sizes " + head[14:26].hex())
    if head[4:14] != entry[6:16]:
        header += ", local header " + head[4:14].hex()
    if info.comment:
        header += ", comment %r" % info.comment
    for fields in (head[30 + struct.unpack("<H", head[26:28])[0] :], info.extra):
        while fields:
            kind, size = struct.unpack("<HH", fields[:4]) if len(fields) >= 4 else (-1, len(fields))
            field, fields = fields[: 4 + size], fields[4 + size :]
            if kind == 0x5455 and len(field) == 9 and field[4] == 1:  # an extended timestamp
                second = utc(struct.unpack("<i", field[5:])[0])
                if facts.setdefault("about mtime", second) == second:
                    continue
            # Sizes of more than four bytes (zip64) follow from the bytes of the member.
            if kind != 1 and (kind not in _PADDING or field[4:].strip(b"\0Z")):
                header += ", extra " + field.hex()
    return {**facts, "about header": Text(header)}


def _check_layout(data: "memoryview", archive: zipfile.ZipFile, members: "Iterable[_Member]") -> None:
    """Raise `UnreadableError` for bytes that belong to two members, or to no member and not to the directory at the end."""
    end = len(data) - 22 - len(archive.comment)
    if bytes(data[max(end, 0) : end + 4]) != b"PK\x05\x06":
        raise UnreadableError("has bytes after its archive")
    at, gaps = 0, (0,)  # type: tuple[int, tuple[int, ...]]
    for member in sorted(members, key=lambda member: member.start):
        if member.start - at not in gaps:
            raise UnreadableError("has bytes between its members, or members that overlap")
        at, gaps = member.end, member.gaps
    if archive.start_dir - at not in gaps:
        raise UnreadableError("has bytes before its directory")


def utc(second: int) -> str:
    """A time in seconds since 1970, as `YYYY-MM-DD HH:MM:SS`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(second))
