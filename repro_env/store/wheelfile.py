"""A wheel as a file: its facts, and the bytes of what it becomes. Reads only what is asked for.

Works on any seekable binary file, so on one that fetches byte ranges as well as on one on disk.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from repro_env.image import wheel
from repro_env.image.entry import Entry
from repro_env.image.stitch import Deflated
from repro_env.model.errors import ArtifactError
from repro_env.store.member import HEADER, content, raw

FACTS = "wheel"
"""Kind of the facts of wheels in the store's cache, by the wheel's sha256."""
MAX_TEXT = 64 << 20
"""Bytes of one member that is read whole: RECORD, WHEEL, entry_points.txt, a script."""
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, IndexError)
"""What `zipfile` raises for archives that are none; the last for a name without a character."""
_SPECIAL = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)


def facts(file: BinaryIO, filename: str) -> wheel.Facts:
    """What of a wheel decides what it becomes. Raises `ArtifactError` for what is not a wheel."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _facts(archive, filename)
    except (*_BROKEN, NotImplementedError, EOFError, RuntimeError, OverflowError) as error:
        raise ArtifactError(f"is not a wheel that can be read: {error}", where=filename) from None


def _facts(archive: zipfile.ZipFile, filename: str) -> wheel.Facts:
    _apart(archive, filename)
    members = [member for member in archive.infolist() if not member.is_dir()]
    for member in members:
        if member.flag_bits & 1 or stat.S_IFMT(member.external_attr >> 16) in _SPECIAL:
            raise ArtifactError(
                f"has {member.filename}, which is encrypted, or a symlink, device, pipe or socket", where=filename
            )
    by_name = {member.filename: member for member in members}
    info = wheel.dist_info(list(by_name), filename)
    scripts = info.removesuffix(".dist-info") + ".data/scripts/"
    for needed in ("RECORD", "WHEEL"):
        if f"{info}/{needed}" not in by_name:
            raise ArtifactError(f"has no {info}/{needed}", where=filename)

    def text(name: str) -> bytes:
        member = by_name.get(name)
        if member is None:
            return b""
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotImplementedError(f"{name} is compressed by method {member.compress_type}")
        if member.file_size > MAX_TEXT:
            raise ArtifactError(f"has {name} of {member.file_size} bytes", where=filename)
        return archive.read(member)

    return wheel.Facts(
        filename=filename,
        files=tuple(wheel.File(member.filename, member.file_size, _executable(member)) for member in members),
        record=text(f"{info}/RECORD"),
        metadata=text(f"{info}/WHEEL"),
        entry_points=text(f"{info}/entry_points.txt"),
        scripts={name: text(name) for name in by_name if name.startswith(scripts)},
    )


def _apart(archive: zipfile.ZipFile, filename: str) -> None:
    """Raises `ArtifactError` when members share bytes: a small file could say so to be endless (zip bombs do)."""
    free = 0
    for member in sorted(archive.infolist(), key=lambda one: one.header_offset):
        if member.header_offset < free:
            raise ArtifactError(f"has {member.filename}, which lies in another member", where=filename)
        free = member.header_offset + HEADER + len(member.orig_filename) + member.compress_size
    if free > archive.start_dir:
        raise ArtifactError("has a member that reaches into its directory", where=filename)


def _executable(member: zipfile.ZipInfo) -> bool:
    """As pip decides it: a regular file with any executable bit."""
    mode = member.external_attr >> 16
    return stat.S_ISREG(mode) and bool(mode & 0o111)


class WheelContents:
    """The bytes of what a wheel on disk becomes (`image.entry.Contents`); entries relative to the prefix.

    Each member's CRC and size are checked; never more bytes come out than the size that the entry was made of.
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
        """The content of one file entry for `image.stitch`: as the wheel holds it when that is deflated, else its bytes.

        Nothing of a deflate stream is checked here. Raises `ArtifactError` for a file that is no wheel or lacks the
        member; what it gives raises it when read.
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
                f"cannot be unpacked from {self._path.name}: {error}",
                where=entry.path,
                hint="the wheel is damaged; delete it from the store and rebuild",
            ) from None

    def _open(self) -> BinaryIO:
        with zipfile.ZipFile(self._path) as archive:
            self._members = archive.NameToInfo
        return self._path.open("rb")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()


def open_facts(path: Path, filename: str) -> wheel.Facts:
    """`facts` of a wheel on disk."""
    with path.open("rb") as file:
        return facts(cast("BinaryIO", file), filename)
