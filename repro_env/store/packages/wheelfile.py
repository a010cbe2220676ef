"""Read a wheel file: its facts, and the content of the files that it installs. Only the needed parts are read.

Works with any seekable binary file: a file on disk, or a remote file that is read by byte ranges.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from repro_env.oci import inflate, wheel
from repro_env.oci.entry import CHUNK, Entry
from repro_env.schema.errors import ArtifactError
from repro_env.store.facts import FactCache

_READ = 1 << 18
HEADER = 30
"""Size of a local header in bytes, without name and extra field."""
FACTS = "wheel"
"""Kind of the facts of wheels in the store's cache, by the wheel's sha256."""
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, IndexError)
"""What `zipfile` raises for invalid archives. It raises IndexError for an empty name."""
_UNREADABLE = (*_BROKEN, EOFError, NotImplementedError, OSError, KeyError)


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

    def chunks(self, entry: Entry, installed: Iterable[bytes] | None = None) -> Iterable[bytes]:
        """Return the content of one file entry: its deflate stream (`Deflated`) if there is one. It is read once.

        `installed`: the content of the installed file, which is used if it has the member's size and CRC; else reading fails.
        Raises `ArtifactError` if the file is not a wheel or lacks the member; reading the result may raise it too.
        """
        if entry.path in self._installed.literals:
            return (self._installed.literals[entry.path],)
        where = f"{self._path.name}: {entry.path}"
        try:
            if self._file is None:
                with zipfile.ZipFile(self._path) as archive:
                    self._members = archive.NameToInfo
                self._file = self._path.open("rb")
            member = self._members[self._installed.members[entry.path]]
            if installed is not None:
                return inflate.check(installed, member.file_size, member.CRC, where)
            return content(self._file, member, where)
        except _UNREADABLE as error:
            raise _unreadable(error, where) from None

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


def content(file: BinaryIO, member: zipfile.ZipInfo, where: str) -> Iterable[bytes]:
    """Return the content of a member: its deflate stream, or its bytes if it is not compressed.

    Its size and CRC are checked while it is read. Raises `NotImplementedError` for another compression method.
    """
    if member.compress_type == zipfile.ZIP_DEFLATED:
        is_small = member.compress_size <= _READ and member.file_size <= CHUNK
        return inflate.Deflated(member.CRC, member.file_size, _raw(file, member, where), where, is_small)
    if member.compress_type == zipfile.ZIP_STORED:
        return inflate.check(_raw(file, member, where), member.file_size, member.CRC, where)
    raise NotImplementedError(f"it is compressed by method {member.compress_type}")


def _raw(file: BinaryIO, member: zipfile.ZipInfo, where: str) -> Iterator[bytes]:
    """Yield the bytes of a member as they are in the file."""
    try:
        file.seek(member.header_offset)
        header = file.read(HEADER)
        if len(header) != HEADER or header[:4] != b"PK\x03\x04":
            raise zipfile.BadZipFile("its header is missing")
        file.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
        unread = member.compress_size
        while unread:
            data = file.read(min(unread, _READ))
            if not data:
                raise zipfile.BadZipFile("the wheel is truncated")
            unread -= len(data)
            yield data
    except _UNREADABLE as error:
        raise _unreadable(error, where) from None


def _unreadable(error: Exception, where: str) -> ArtifactError:
    hint = "the wheel is damaged; delete it from the store and rebuild"
    return ArtifactError(f"the file cannot be unpacked: {error}", where=where, hint=hint)
