"""One member of a zip file, inflated or as it lies there: at the speed of the inflater, and never more than it declares.

`zipfile` does the same with many small steps per member, which is most of the work where members are small.
The local header is read for its length alone; what is true of a member stands in the central directory.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from repro_env.image.entry import CHUNK
from repro_env.store import inflate

_READ = 1 << 18
HEADER = 30
"""Bytes of a local header, without name and extra field."""


def content(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of a member. Raises `zipfile.BadZipFile`, `zlib.error` or `NotImplementedError` when it is damaged."""
    _seek(file, member)
    if member.compress_type == zipfile.ZIP_STORED:
        found = _stored(file, member)
    elif member.compress_type == zipfile.ZIP_DEFLATED:
        found = _inflated(file, member)
    else:
        raise NotImplementedError(f"{member.filename} is compressed by method {member.compress_type}")
    seen = check = 0
    for chunk in found:
        seen += len(chunk)
        if seen > member.file_size:
            break
        check = inflate.ZLIB.crc32(chunk, check)
        yield chunk
    if seen != member.file_size or check != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename} has another size or CRC than the directory says")


def raw(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a member as the file holds them, compressed where they are, unchecked.

    Raises `zipfile.BadZipFile` when the file ends before them.
    """
    _seek(file, member)
    left = member.compress_size
    while left:
        data = file.read(min(left, _READ))
        if not data:
            raise zipfile.BadZipFile(f"ends in the middle of {member.filename}")
        left -= len(data)
        yield data


def _seek(file: BinaryIO, member: zipfile.ZipInfo) -> None:
    file.seek(member.header_offset)
    header = file.read(HEADER)
    if len(header) != HEADER or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no header of {member.filename}")
    file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)


def _stored(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    left = member.compress_size
    while left and (chunk := file.read(min(left, CHUNK))):
        left -= len(chunk)
        yield chunk


def _inflated(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    inflater = inflate.ZLIB.decompressobj(-zlib.MAX_WBITS)
    left = member.compress_size
    try:
        while left and not inflater.eof and (data := file.read(min(left, _READ))):
            left -= len(data)
            while data:
                if chunk := inflater.decompress(data, CHUNK):
                    yield chunk
                data = inflater.unconsumed_tail
        while not inflater.eof and (chunk := inflater.decompress(b"", CHUNK)):
            yield chunk  # what the inflater still held back
    except inflate.ZLIB.error as error:
        raise zlib.error(str(error)) from None
