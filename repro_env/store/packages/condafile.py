"""Read a conda package file: its facts, and the content of its files. `.conda` (a zip of zstd tars) and `.tar.bz2`.

In both formats a file can be read only after all files before it. So a package is unpacked once into a temporary
directory. The unpacked files have numbers as names, so the archive cannot choose paths of this machine. Only the files
of `info/` are read into memory.
"""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import mmap
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from repro_env.io.files import FileContents, room
from repro_env.oci import conda
from repro_env.oci.entry import CHUNK, Entry
from repro_env.oci.wheel import Installed
from repro_env.schema.errors import ArtifactError
from repro_env.store.temporary import Temp

FACTS = "conda"
"""Kind of the facts of packages in the store's cache, by `facts_key`."""
MAX_INFO = 256 << 20
"""Largest total size of the files in `info/`, in bytes."""
MAX_HEADER = 1 << 20
"""Largest extended tar header in bytes."""
MAX_UNPACKED = 256 << 30
"""Largest uncompressed size of a package in bytes."""
_NEEDED = ("info/index.json", "info/paths.json", "info/link.json")


def facts_key(sha256: str, prefix: str) -> str:
    """Return the key of the facts of one archive at one prefix."""
    return f"{sha256} {prefix}"


def info(file: BinaryIO, filename: str) -> conda.Info:
    """Read `info/` of a `.conda` file; a remote file needs only a few ranges. Raises `ArtifactError`."""
    unpacker = _Unpacker(filename, None, MAX_INFO)
    with _convert_errors(filename), zipfile.ZipFile(file) as archive, ExitStack() as opened:
        unpacker.unpack(_part(archive, "info", filename, opened))
    return conda.read_info(unpacker.lists, filename)


def link(path: Path, filename: str, prefix: str, directory: Path) -> tuple[conda.Facts, dict[str, Path]]:
    """Unpack a package into `directory`, and insert the prefix. Raises `ArtifactError`.

    Returns the facts of the package at this prefix, and the file of each member.
    """
    unpacker = _Unpacker(filename, directory, MAX_UNPACKED)
    linked: list[Entry] = []
    contents: dict[str, Path] = {}
    with _convert_errors(filename), room(directory):
        with ExitStack() as opened:
            for tar in _tars(path, filename, opened):
                unpacker.unpack(tar)
        package_info = conda.read_info(unpacker.lists, filename)
        for listed in package_info.paths:
            member = unpacker.members.get(listed.path)
            if member is None and listed.kind == "dir":
                member = Entry(listed.path, "dir")  # archives may leave out directories
            if member is None:
                raise ArtifactError(f"the package lists {listed.path}, which is missing", where=filename)
            if member.kind == "file":
                contents[listed.path] = unpacker.files[listed.path]
            if listed.placeholder and member.kind == "file":
                # A hard link has the same unpacked file as another member.
                contents[listed.path] = directory / f"{len(linked)}.linked"
                size, sha256 = _replace(unpacker.files[listed.path], contents[listed.path], listed, prefix)
                member = msgspec.structs.replace(member, size=size, sha256=sha256)
            linked.append(member)
    return conda.Facts(filename, package_info, tuple(linked)), contents


class UnpackedPackage(ExitStack):
    """A package at one prefix. It is unpacked when it is used first; leaving the context removes the files."""

    def __init__(self, path: Path, filename: str, prefix: str, temp: Temp) -> None:
        super().__init__()
        self._path = path
        self._filename = filename
        self._prefix = prefix
        self._temp = temp

    @cached_property
    def _linked(self) -> tuple[conda.Facts, dict[str, Path]]:
        return link(self._path, self._filename, self._prefix, self.enter_context(self._temp.directory()))

    @property
    def facts(self) -> conda.Facts:
        """The facts of the package. Raises `ArtifactError` if it is invalid."""
        return self._linked[0]

    def content(self, member: str) -> Path:
        """Return the unpacked file of a member, with the prefix inserted."""
        where = self._linked[1].get(member)
        if where is None:
            raise ArtifactError(f"the file is not in {self._filename}", where=member, hint="capture again")
        return where


class CondaContents:
    """The content of the files that a package installs (`oci.entry.Contents`). Entries are relative to the prefix."""

    def __init__(self, package: UnpackedPackage, installed: Installed) -> None:
        self._package = package
        self._installed = installed

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        literal = self._installed.literals.get(entry.path)
        if literal is not None:
            yield literal
            return
        where = self._package.content(self._installed.members[entry.path])
        yield from FileContents(where.parent).chunks(msgspec.structs.replace(entry, path=where.name))


def _replace(source: Path, target: Path, package_path: conda.PackagePath, prefix: str) -> tuple[int, str]:
    """Write a file with the prefix inserted. Returns its size and sha256."""
    hasher, size = hashlib.sha256(), 0
    with target.open("xb") as out, mapped(source) as data:
        for chunk in conda.insert_prefix(data, package_path, prefix):
            hasher.update(chunk)
            out.write(chunk)
            size += len(chunk)
    return size, hasher.hexdigest()


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[conda.Bytes]:
    """Map the content of a file into memory. Raises `OSError`."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _tars(path: Path, filename: str, opened: ExitStack) -> Iterator[BinaryIO]:
    """Yield the uncompressed tars of a package."""
    if filename.endswith(".tar.bz2"):
        yield cast("BinaryIO", opened.enter_context(bz2.BZ2File(path)))
        return
    archive = opened.enter_context(zipfile.ZipFile(path))
    for name in ("info", "pkg"):
        yield _part(archive, name, filename, opened)


def _part(archive: zipfile.ZipFile, name: str, filename: str, opened: ExitStack) -> BinaryIO:
    from zstandard import ZstdDecompressor

    members = [
        member for member in archive.infolist() if member.filename.startswith(f"{name}-") and member.filename.endswith(".tar.zst")
    ]
    if len(members) != 1 or members[0].flag_bits & 1:
        raise ArtifactError(f"the package has {len(members)} files {name}-*.tar.zst instead of one", where=filename)
    member = opened.enter_context(archive.open(members[0]))
    return cast("BinaryIO", opened.enter_context(ZstdDecompressor().stream_reader(member, read_across_frames=True)))


class LimitedTarInfo(tarfile.TarInfo):
    """A tar member with a limit for extended headers, which `tarfile` reads into memory without one."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        extended = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if self.type in extended and self.size > MAX_HEADER:
            raise tarfile.ReadError("an extended header is too large")
        return cast("tarfile.TarInfo", super()._proc_member(archive))  # type: ignore[misc]


def _members(file: BinaryIO, filename: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    count = 0
    with tarfile.open(fileobj=file, mode="r|", tarinfo=LimitedTarInfo) as archive:
        for member in archive:
            count += 1
            if count > conda.MAX_PATHS:
                raise ArtifactError(f"the package has more than {conda.MAX_PATHS:,} members", where=filename)
            yield archive, member
            archive.members = []  # type: ignore[attr-defined] # it would keep all members


class _Unpacker:
    """Unpacks the tars of a package one after the other."""

    def __init__(self, filename: str, directory: Path | None, limit: int) -> None:
        """Without `directory`, no file is kept. `limit`: the largest total size of the members in bytes."""
        self.members: dict[str, Entry] = {}
        """By path in the archive."""
        self.files: dict[str, Path] = {}
        """The unpacked file of each member that is a file."""
        self.lists: dict[str, bytes] = {}
        """The content of the files of `info/` that are needed."""
        self._filename = filename
        self._directory = directory
        self._remaining = limit
        self._remaining_lists = MAX_INFO

    def unpack(self, file: BinaryIO) -> None:
        for archive, tar_member in _members(file, self._filename):
            name = tar_member.name.removeprefix("./").rstrip("/")
            if name not in ("", "."):
                self._check(name, tar_member)
                self.members[name] = self._unpacked(archive, tar_member, name)

    def _check(self, name: str, tar_member: tarfile.TarInfo) -> None:
        conda.check_path(name, self._filename)
        if name in self.members and not (tar_member.isdir() and self.members[name].kind == "dir"):
            raise ArtifactError(f"the package has {name} twice", where=self._filename)
        self._remaining_lists -= tar_member.size if name in _NEEDED else 0
        if self._remaining_lists < 0:
            raise ArtifactError("the info/ directory of the package is too large", where=self._filename)
        self._remaining -= tar_member.size
        if self._remaining < 0:
            raise ArtifactError("the package is too large", where=self._filename)

    def _unpacked(self, archive: tarfile.TarFile, tar_member: tarfile.TarInfo, name: str) -> Entry:
        if tar_member.isdir():
            return Entry(name, "dir")
        if tar_member.issym():
            return Entry(name, "link", target=tar_member.linkname)
        if tar_member.islnk():
            path = tar_member.linkname.removeprefix("./")
            target = self.members.get(path)
            if target is None or target.kind != "file":
                raise ArtifactError(
                    f"the hard link {name} of the package points to {tar_member.linkname!r}, which is not a file before it",
                    where=self._filename,
                )
            if path in self.files:
                self.files[name] = self.files[path]
            return msgspec.structs.replace(target, path=name)
        if tar_member.isreg() and not tar_member.issparse():
            return self._write(archive, tar_member, name)
        raise ArtifactError(f"the package has {name}, which is not a file, directory or link", where=self._filename)

    def _write(self, archive: tarfile.TarFile, tar_member: tarfile.TarInfo, name: str) -> Entry:
        path = None if self._directory is None else self._directory / str(len(self.members))
        content = archive.extractfile(tar_member)
        hasher, chunks = hashlib.sha256(), []
        with path.open("xb") if path is not None else contextlib.nullcontext() as out:
            while content is not None and (chunk := content.read(CHUNK)):
                hasher.update(chunk)
                if out is not None:
                    out.write(chunk)
                if name in _NEEDED:
                    chunks.append(chunk)
        if name in _NEEDED:
            self.lists[name] = b"".join(chunks)
        if path is not None:
            self.files[name] = path
        return Entry(name, "file", bool(tar_member.mode & stat.S_IXUSR), tar_member.size, hasher.hexdigest())


@contextlib.contextmanager
def _convert_errors(filename: str) -> Iterator[None]:
    from zstandard import ZstdError

    try:
        yield
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        ZstdError,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
        OverflowError,
        ValueError,
    ) as error:
        raise ArtifactError(f"the conda package cannot be read: {error}", where=filename) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise ArtifactError(f"the conda package cannot be read: {error}", where=filename) from None  # raised by bz2


def md5_of(chunks: Iterable[bytes]) -> str:
    """Return the md5 of some bytes in hex. Older records of conda have only this."""
    hasher = hashlib.md5(usedforsecurity=False)
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()
