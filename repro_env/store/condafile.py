"""A conda package as a file: its facts, and the bytes of what it becomes. `.conda` (a zip of zstd tars) and `.tar.bz2`.

Neither gives one file without all that come before it, so a package is unpacked once into a temporary folder, under
names that are numbers: what is in the archive names no path of this machine. Nothing is held in memory but the files of
`info/`.
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
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from repro_env.image import conda
from repro_env.image.entry import CHUNK, Entry
from repro_env.image.wheel import Installed
from repro_env.io.files import FileContents, room
from repro_env.model.errors import ArtifactError
from repro_env.store.temp import Temp

FACTS = "conda"
"""Kind of the facts of packages in the store's cache, by `facts_key`."""
MAX_INFO = 256 << 20
"""Bytes of all files of `info/` together that are read."""
MAX_HEADER = 1 << 20
"""Bytes of an extended tar header."""
MAX_UNPACKED = 256 << 30
"""Bytes that a package may hold."""
_NEEDED = ("info/index.json", "info/paths.json", "info/link.json", "info/files", "info/has_prefix")


def facts_key(sha256: str, prefix: str) -> str:
    """Facts are those of one archive at one prefix."""
    return f"{sha256} {prefix}"


class Held(msgspec.Struct, frozen=True, gc=False):
    """One member of an archive, unpacked."""

    kind: str
    """`file`, `link` or `dir`."""
    executable: bool
    size: int
    sha256: str
    target: str
    where: str
    """Name of the file in the folder that it was unpacked to; empty when it was not."""


def info(file: BinaryIO, filename: str) -> conda.Info:
    """What `info/` of a `.conda` tells; of a remote one it takes a few ranges. Raises `ArtifactError`."""
    with _translated(filename), zipfile.ZipFile(file) as archive, ExitStack() as opened:
        return conda.read_info(_info_files(_part(archive, "info", filename, opened), filename), filename)


def unpack(path: Path, filename: str, folder: Path, *, whole: bool = True) -> tuple[conda.Info, dict[str, Held]]:
    """All members of a package on disk, their contents in `folder`. Raises `ArtifactError`.

    Not `whole`: of a `.conda`, whose lists come first, the contents of files that hold the prefix alone.
    """
    small: dict[str, bytes] = {}
    held: dict[str, Held] = {}
    with _translated(filename), room(folder), ExitStack() as opened:
        wanted: frozenset[str] | None = None
        for tar in _tars(path, filename, opened):
            _unpack(tar, filename, folder, held, wanted)
            small = _small(held, folder, filename)
            if not whole and filename.endswith(".conda") and wanted is None:
                wanted = frozenset(one.path for one in conda.read_info(small, filename).paths if one.placeholder)
    links = frozenset(name for name, one in held.items() if one.kind == "link")
    return conda.read_info(small, filename, links), held


def _small(held: dict[str, Held], folder: Path, filename: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_INFO
    for name in _NEEDED:
        one = held.get(name)
        if one is not None and one.kind == "file" and one.where:
            left -= one.size
            if left < 0:
                raise ArtifactError("has an info/ folder of an impossible size", where=filename)
            found[name] = (folder / one.where).read_bytes()
    return found


def link(path: Path, filename: str, prefix: str, folder: Path, *, whole: bool = True) -> tuple[conda.Facts, dict[str, Path]]:
    """What the package is at a prefix, and its files' contents with the prefix in place, by member. Raises `ArtifactError`.

    Not `whole`: some contents may not be there.
    """
    found, held = unpack(path, filename, folder, whole=whole)
    with_prefix = [held[one.path] for one in found.paths if one.placeholder and one.path in held]
    if not whole and any(one.kind == "file" and not one.where for one in with_prefix):
        (folder / "whole").mkdir()  # a hard link with the prefix in it, to a file that was not kept
        return link(path, filename, prefix, folder / "whole")
    linked = []
    contents: dict[str, Path] = {}
    with _translated(filename), room(folder):
        for one in found.paths:
            member = held.get(one.path)
            if member is None and one.kind == "dir":
                member = Held("dir", False, 0, "", "", "")  # archives need not hold folders
            if member is None:
                raise ArtifactError(f"lists {one.path} and does not have it", where=filename)
            where, size, sha256 = folder / member.where, member.size, member.sha256
            if one.placeholder and member.kind == "file":
                where = folder / f"{member.where}.linked"
                size, sha256 = _replace(folder / member.where, where, one, prefix)
            linked.append(conda.Linked(one.path, _kind(member.kind), member.executable, size, sha256, member.target))
            if member.kind == "file" and member.where:
                contents[one.path] = where
    return conda.Facts(filename, found, tuple(linked)), contents


def _kind(kind: str) -> conda.Kind:
    return cast("conda.Kind", kind)


class Unpacked:
    """A package on disk at one prefix, unpacked when something of it is asked for.

    Use as a context manager: leaving it removes what was unpacked.
    """

    def __init__(self, path: Path, filename: str, prefix: str, temp: Temp) -> None:
        self._path = path
        self._filename = filename
        self._prefix = prefix
        self._temp = temp
        self._stack = ExitStack()
        self._linked: tuple[conda.Facts, dict[str, Path]] | None = None

    def __enter__(self) -> Unpacked:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._linked = None

    @property
    def facts(self) -> conda.Facts:
        """Raises `ArtifactError` for what is no package."""
        return self._link()[0]

    def content(self, member: str) -> Path:
        """A file of it with the prefix in place."""
        where = self._link()[1].get(member)
        if where is None:
            raise ArtifactError(f"is not in {self._filename}", where=member, hint="capture again")
        return where

    def _link(self) -> tuple[conda.Facts, dict[str, Path]]:
        if self._linked is None:
            folder = self._stack.enter_context(self._temp.folder())
            self._linked = link(self._path, self._filename, self._prefix, folder)
        return self._linked


class CondaContents:
    """The bytes of what a package becomes (`image.entry.Contents`); entries relative to the prefix."""

    def __init__(self, package: Unpacked, installed: Installed) -> None:
        self._package = package
        self._installed = installed

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        literal = self._installed.literals.get(entry.path)
        if literal is not None:
            yield literal
            return
        where = self._package.content(self._installed.members[entry.path])
        moved = Entry(where.name, "file", entry.executable, entry.size, entry.sha256)
        yield from FileContents(where.parent).chunks(moved)


def _replace(source: Path, to: Path, packed: conda.Packed, prefix: str) -> tuple[int, str]:
    """Write a file with the prefix in place; returns its size and sha256."""
    hasher, size = hashlib.sha256(), 0
    with to.open("xb") as out, mapped(source) as data:
        for chunk in conda.replaced(data, packed, prefix):
            hasher.update(chunk)
            out.write(chunk)
            size += len(chunk)
    return size, hasher.hexdigest()


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[conda.Bytes]:
    """A file's content without reading it. Raises `OSError`."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _tars(path: Path, filename: str, opened: ExitStack) -> Iterator[BinaryIO]:
    """The tars of a package, uncompressed."""
    if filename.endswith(".tar.bz2"):
        yield cast("BinaryIO", opened.enter_context(bz2.BZ2File(path)))
        return
    archive = opened.enter_context(zipfile.ZipFile(path))
    for name in ("info", "pkg"):
        yield _part(archive, name, filename, opened)


def _part(archive: zipfile.ZipFile, name: str, filename: str, opened: ExitStack) -> BinaryIO:
    from zstandard import ZstdDecompressor

    found = [one for one in archive.infolist() if one.filename.startswith(f"{name}-") and one.filename.endswith(".tar.zst")]
    if len(found) != 1 or found[0].flag_bits & 1:
        raise ArtifactError(f"has {len(found)} {name}-*.tar.zst where a package has one", where=filename)
    member = opened.enter_context(archive.open(found[0]))
    return cast("BinaryIO", opened.enter_context(ZstdDecompressor().stream_reader(member, read_across_frames=True)))


class _Member(tarfile.TarInfo):
    """Python reads an extended header into memory, however long it says it is."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        extended = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if self.type in extended and self.size > MAX_HEADER:
            raise tarfile.ReadError("an extended header of an impossible size")
        return cast("tarfile.TarInfo", super()._proc_member(archive))  # type: ignore[misc]


def _members(file: BinaryIO, filename: str) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    count = 0
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_Member) as archive:
        for one in archive:
            count += 1
            if count > conda.MAX_PATHS:
                raise ArtifactError("has too many members", where=filename)
            yield archive, one
            archive.members = []  # type: ignore[attr-defined] # it would remember each


def _info_files(file: BinaryIO, filename: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = MAX_INFO
    for archive, one in _members(file, filename):
        left -= one.size
        if left < 0:
            raise ArtifactError("has an info/ folder of an impossible size", where=filename)
        content = archive.extractfile(one) if one.name in _NEEDED and one.isreg() else None
        if content is not None:
            found[one.name] = content.read()
    return found


def _unpack(file: BinaryIO, filename: str, folder: Path, held: dict[str, Held], wanted: frozenset[str] | None) -> None:
    """`wanted`: whose contents are kept; None for all."""
    left = MAX_UNPACKED
    for archive, one in _members(file, filename):
        name = one.name.removeprefix("./").rstrip("/")
        if not name or name == ".":
            continue
        conda.check_path(name, filename)
        if name in held and not (one.isdir() and held[name].kind == "dir"):
            raise ArtifactError(f"has {name} twice", where=filename)
        left -= one.size
        if left < 0:
            raise ArtifactError("is of an impossible size", where=filename)
        if one.isdir():
            held[name] = Held("dir", False, 0, "", "", "")
        elif one.issym():
            held[name] = Held("link", False, 0, "", one.linkname, "")
        elif one.islnk():
            other = held.get(one.linkname.removeprefix("./"))
            if other is None or other.kind != "file":
                raise ArtifactError(f"has the hard link {name} to {one.linkname!r}, which is no file before it", where=filename)
            held[name] = other
        elif one.isreg() and not one.issparse():
            kept = wanted is None or name in wanted
            held[name] = _write(archive, one, folder / str(len(held)) if kept else None)
        else:
            raise ArtifactError(f"has {name}, which is no file, folder or link", where=filename)


def _write(archive: tarfile.TarFile, one: tarfile.TarInfo, to: Path | None) -> Held:
    content = archive.extractfile(one)
    hasher = hashlib.sha256()
    with to.open("xb") if to is not None else contextlib.nullcontext() as out:
        while content is not None and (chunk := content.read(CHUNK)):
            hasher.update(chunk)
            if out is not None:
                out.write(chunk)
    return Held("file", bool(one.mode & stat.S_IXUSR), one.size, hasher.hexdigest(), "", to.name if to is not None else "")


@contextlib.contextmanager
def _translated(filename: str) -> Iterator[None]:
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
        raise ArtifactError(f"is not a conda package that can be read: {error}", where=filename) from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise ArtifactError(f"is not a conda package that can be read: {error}", where=filename) from None  # bz2


def digests(chunks: Iterable[bytes]) -> tuple[str, str, int]:
    """(sha256, md5, size) of some bytes: older records name the md5 alone."""
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    for chunk in chunks:
        sha256.update(chunk)
        md5.update(chunk)
        size += len(chunk)
    return f"sha256:{sha256.hexdigest()}", md5.hexdigest(), size
