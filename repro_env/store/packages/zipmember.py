"""Read one member of a zip file, decompressed or raw, quickly and never more bytes than it declares.

`zipfile` does the same in many small steps, which take most of the time if members are small. The local header is read
only for its length; everything else comes from the central directory.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from repro_env.oci import inflate
from repro_env.oci.entry import CHUNK

_READ = 1 << 18
HEADER = 30
"""Size of a local header in bytes, without name and extra field."""


def content(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member. Raises `zipfile.BadZipFile` or `zlib.error` if it is damaged.

    Raises `NotImplementedError` for an unknown compression method.
    """
    _seek(file, member)
    if member.compress_type == zipfile.ZIP_STORED:
        chunks = _stored(file, member)
    elif member.compress_type == zipfile.ZIP_DEFLATED:
        chunks = _inflated(file, member)
    else:
        raise NotImplementedError(f"{member.filename} is compressed by method {member.compress_type}")
    size = crc = 0
    for chunk in chunks:
        size += len(chunk)
        if size > member.file_size:
            break
        crc = inflate.ZLIB.crc32(chunk, crc)
        yield chunk
    if size != member.file_size or crc != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename} does not have the size and CRC in the directory")


def raw(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the raw bytes of a member, compressed or not, without a check.

    Raises `zipfile.BadZipFile` if the file is truncated.
    """
    _seek(file, member)
    unread = member.compress_size
    while unread:
        data = file.read(min(unread, _READ))
        if not data:
            raise zipfile.BadZipFile(f"the file ends in the middle of {member.filename}")
        unread -= len(data)
        yield data


def _seek(file: BinaryIO, member: zipfile.ZipInfo) -> None:
    file.seek(member.header_offset)
    header = file.read(HEADER)
    if len(header) != HEADER or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"the header of {member.filename} is missing")
    file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)


def _stored(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    unread = member.compress_size
    while unread and (chunk := file.read(min(unread, CHUNK))):
        unread -= len(chunk)
        yield chunk


def _inflated(file: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    inflater = inflate.ZLIB.decompressobj(-zlib.MAX_WBITS)
    unread = member.compress_size
    try:
        while unread and not inflater.eof and (data := file.read(min(unread, _READ))):
            unread -= len(data)
            while data:
                if chunk := inflater.decompress(data, CHUNK):
                    yield chunk
                data = inflater.unconsumed_tail
        while not inflater.eof and (chunk := inflater.decompress(b"", CHUNK)):
            yield chunk  # what the decompressor still holds
    except inflate.ZLIB.error as error:
        raise zlib.error(str(error)) from None
