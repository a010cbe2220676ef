"""Read a wheel file: its facts, and the content of the files that it installs. Only the needed parts are read.

Works with any seekable binary file: a file on disk, or a remote file that is read by byte ranges.
"""

from __future__ import annotations

import contextlib
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from repro_env.oci import inflate, wheel
from repro_env.oci.entry import CHUNK, Entry
from repro_env.oci.gzipencoder import Deflated
from repro_env.schema.errors import ArtifactError
from repro_env.store.facts import FactCache

_READ = 1 << 18
HEADER = 30
"""Size of a local header in bytes, without name and extra field."""
FACTS = "wheel"
"""Kind of the facts of wheels in the store's cache, by the wheel's sha256."""
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, IndexError)
"""What `zipfile` raises for invalid archives. It raises IndexError for an empty name."""


def facts(file: BinaryIO, filename: str) -> wheel.Facts:
    """Read the facts of a wheel. Raises `ArtifactError` if it is not a valid wheel."""
    try:
        with zipfile.ZipFile(file) as archive:
            return wheel.read_facts(archive, filename)
    except (*_BROKEN, NotImplementedError, EOFError, RuntimeError, OverflowError) as error:
        raise ArtifactError(f"the wheel cannot be read: {error}", where=filename) from None


class WheelContents:
    """The content of the files that a wheel on disk installs (`oci.entry.Contents`). Entries are relative to the prefix.

    The CRC and size of each member are checked, and at most the declared size is read.
    """

    def __init__(self, path: Path, installed: wheel.Installed) -> None:
        self._path = path
        self._installed = installed
        self._file: BinaryIO | None = None
        self._members: dict[str, zipfile.ZipInfo] = {}

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        literal = self._installed.literals.get(entry.path)
        if literal is not None:
            yield literal
            return
        yield from self._read(entry, content)

    def deflated(self, entry: Entry) -> Deflated | Iterable[bytes]:
        """Return the content of one file entry for `oci.gzipencoder`: the raw deflate stream if there is one, else the bytes.

        A deflate stream is not checked here. Raises `ArtifactError` if the file is not a wheel or lacks the member;
        reading the result may raise it too.
        """
        if entry.path in self._installed.literals:
            return (self._installed.literals[entry.path],)
        with self._errors(entry):
            member = self._member(entry)[1]
        if member.compress_type != zipfile.ZIP_DEFLATED:
            return self._read(entry, content)
        return Deflated(crc=member.CRC, size=member.file_size, chunks=self._read(entry, raw))

    def _read(self, entry: Entry, how: Callable[[BinaryIO, zipfile.ZipInfo], Iterator[bytes]]) -> Iterator[bytes]:
        with self._errors(entry):
            yield from how(*self._member(entry))

    def _member(self, entry: Entry) -> tuple[BinaryIO, zipfile.ZipInfo]:
        if self._file is None:
            self._file = self._open()
        return self._file, self._members[self._installed.members[entry.path]]

    @contextlib.contextmanager
    def _errors(self, entry: Entry) -> Iterator[None]:
        try:
            yield
        except (*_BROKEN, EOFError, NotImplementedError, OSError, KeyError) as error:
            raise ArtifactError(
                f"the file cannot be unpacked from {self._path.name}: {error}",
                where=entry.path,
                hint="the wheel is damaged; delete it from the store and rebuild",
            ) from None

    def _open(self) -> BinaryIO:
        with zipfile.ZipFile(self._path) as archive:
            self._members = archive.NameToInfo
        return self._path.open("rb")

    def close(self) -> None:
        """Close the wheel."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()


def open_facts(path: Path, filename: str) -> wheel.Facts:
    """Read the facts of a wheel on disk. Raises `ArtifactError` if it is not a valid wheel."""
    with path.open("rb") as file:
        return facts(cast("BinaryIO", file), filename)


def recall_facts(filename: str, sha256: str, cache: FactCache) -> wheel.Facts | None:
    """Return the facts of a wheel from an earlier capture or rebuild, or None."""
    facts = cache.recall(FACTS, sha256, wheel.Facts)
    # The file name is not part of the wheel's bytes, and `oci.wheel.canonical` compares the two.
    return facts if facts is None or facts.filename == filename else facts._replace(filename=filename)


# -- members of zip files --------------------------------------------------------------------------------------------
# `zipfile` does the same in many small steps, which take most of the time if members are small. The local header is read only
# for its length; everything else comes from the central directory.


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
