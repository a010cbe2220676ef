"""Carried blobs: the `blobs/` folder beside a spec, for what no index can give again.

A blob is named by the sha256 of its bytes: `<hex>` as they are, or `<hex>.gz`. How it is compressed is no part of
any identity. The folder may come from a stranger: what is read is checked, and never inflated past its size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from repro_env.image import tar
from repro_env.image.entry import CHUNK, Entry, Members
from repro_env.io.files import open_regular, room, sync_folder
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError
from repro_env.store import inflate
from repro_env.store.blobs import Blobs, write_hashed
from repro_env.store.digests import hex_of
from repro_env.store.facts import FactCache
from repro_env.store.temp import Temp

if TYPE_CHECKING:
    from concurrent.futures import Future

_NAME = re.compile(r"[0-9a-f]{64}(\.gz)?")
_HINT = "delete it and capture again, or restore it from where it was copied"
_LEVEL = 1
SENT = "carried-blob"
"""Kind of the facts of carried files, by `key_of`: the digest of their very bytes, compressed as they lie, once they were proven."""
_LISTED = "carried-entries"


class _Listed(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]


class Carried:
    """One folder of carried blobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder = folder
        self._temp = Temp(folder / ".temp")

    def add_tree(self, members: Members, *, facts: FactCache | None = None) -> TreeBlob:
        """Keep a tree as the gzip of its layer tar. The same members give the same file.

        With `facts`, `has` will know that it is whole. Raises `DiskError`, and what the members raise.
        """
        files = 0

        def counted() -> Members:
            nonlocal files
            for member in members:
                files += 1
                yield member

        self._make()
        hasher = hashlib.sha256()
        packed = hashlib.sha256()
        with room(self._folder), self._temp.folder() as temporary:
            size = 0

            def measured() -> Iterator[bytes]:
                nonlocal size
                for chunk in _hashed(tar.write(counted()), hasher):
                    size += len(chunk)
                    yield chunk

            with (temporary / "blob").open("xb") as file:
                for member in compressed(measured()):
                    packed.update(member)
                    file.write(member)
            path = self._keep(temporary / "blob", hasher.hexdigest() + ".gz")
        if facts is not None:
            facts.put("carried", key_of(path), b"whole")
            facts.put(SENT, key_of(path), f"sha256:{packed.hexdigest()}".encode())
        return TreeBlob(sha256=f"sha256:{hasher.hexdigest()}", size=size, files=files)

    def add_file(self, path: Path, digest: str, *, compress: bool = False) -> None:
        """Keep a copy of a file, as it is or as its gzip. Raises `ArtifactError` when it is not the one that `digest` names."""
        self._make()
        hasher = hashlib.sha256()
        with room(self._folder), self._temp.folder() as temporary, path.open("rb") as file:
            chunks = _hashed(iter(lambda: file.read(CHUNK), b""), hasher)
            write_hashed(temporary / "blob", compressed(chunks) if compress else chunks)
            got = hasher.hexdigest()
            if got != hex_of(digest):
                raise ArtifactError(f"has other bytes than expected (sha256 {got[:16]}…)", where=str(path), hint="it was changed")
            self._keep(temporary / "blob", got + ".gz" * compress)

    def restore(self, digest: str, chunks: Iterable[bytes], *, compressed: bool, size: int | None, where: str) -> int:
        """Keep a blob that came from elsewhere: its bytes, or their gzip; returns how many they are, inflated.

        Kept once all were read and are the ones that `digest` names, `size` of them unless it is None. `where` names
        the source. Raises `ArtifactError` for others, or where no blob can be kept, `DiskError`, and what `chunks` raises.
        """
        name = hex_of(digest) + (".gz" if compressed else "")
        try:
            self._make()
            with room(self._folder, size or 0), self._temp.folder() as temporary:
                write_hashed(temporary / name, chunks)
                try:
                    seen = sum(map(len, Carried(temporary).chunks(digest, size)))
                except ArtifactError as error:
                    raise ArtifactError(f"gives other bytes than the spec names: {error.what}", where=where, hint=_HINT) from None
                self._keep(temporary / name, name)
        except PermissionError as error:
            hint = "copy the spec's folder to a place that you may write to"
            raise ArtifactError(f"cannot be written: {error.strerror}", where=str(self._folder), hint=hint) from None
        return seen

    def has(self, digest: str, facts: FactCache) -> bool:
        """Whether the blob is here and whole. Every byte is read once; later calls know the file by its key."""
        path = self.path(digest)
        if path is None:
            return False
        key = key_of(path)
        if facts.get("carried", key) is not None:
            return True
        try:
            for _ in self.chunks(digest):
                pass
        except ArtifactError:
            return False
        facts.put("carried", key, b"whole")
        return True

    def file(self, digest: str, size: int, blobs: Blobs) -> Path | None:
        """The blob as a file that holds its very bytes, or None. One that is kept as gzip is inflated into the store's `blobs`.

        Only what is inflated is checked, as by `chunks`: put the other into the store, which does.
        """
        path = self.path(digest)
        if path is not None and path.suffix == ".gz":
            return blobs.put(self.chunks(digest, size), digest, where=str(path), size=size)
        return path if path is not None and path.is_file() and not path.is_symlink() else None

    def packed_file(self, digest: str, facts: FactCache) -> Path | None:
        """The file of a blob that is kept as gzip and is whole; else None."""
        path = self.path(digest)
        return path if path is not None and path.suffix == ".gz" and self.has(digest, facts) else None

    def tree(self, blob: TreeBlob) -> Members:
        """The members of a carried tree. Raises `ArtifactError` when it is missing, or is not the tree that `blob` names.

        Only after the last member is it known that all were right: write them where they can be taken back.
        """
        with self._open(blob.sha256, blob.size) as source:
            yield from tar.read(source.take, where=source.where)
            source.finish()

    def entries(self, blob: TreeBlob, facts: FactCache) -> list[Entry]:
        """The paths of a carried tree, each file with its sha256. Raises what `tree` raises.

        A digest always stands for the same paths: while the file is one that `has` knows to be whole, it is not read again.
        """
        path, key = self.path(blob.sha256), f"{blob.sha256} {blob.size}"
        if path is not None and facts.get("carried", key_of(path)) is not None:
            known = facts.recall(_LISTED, key, _Listed)
            if known is not None:
                return list(known.entries)
        found = []
        for entry, chunks in self.tree(blob):
            hasher = hashlib.sha256()
            for chunk in chunks:
                hasher.update(chunk)
            found.append(msgspec.structs.replace(entry, sha256=hasher.hexdigest()) if entry.kind == "file" else entry)
        facts.put(_LISTED, key, codec.canonical(_Listed(tuple(found))))
        return found

    def packed(self, blob: TreeBlob) -> Iterator[bytes]:
        """The gzip of a carried tree, its very bytes where it is kept as gzip; proven as in `tree` by the time they end."""
        with self._open(blob.sha256, blob.size) as source:
            pieces = _read_through(source)
            yield from pieces if source.compressed else compressed(pieces)

    def chunks(self, digest: str, size: int | None = None) -> Iterator[bytes]:
        """A blob's bytes, checked: `ArtifactError` at the end, or as soon as they are more than `size`."""
        with self._open(digest, size) as source:
            while chunk := source.take(CHUNK):
                yield chunk
            source.finish()

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove all other blobs, and what killed processes left. Other files stay."""
        wanted = {hex_of(digest) for digest in digests}
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._folder.iterdir()):
                if _NAME.fullmatch(path.name) and path.name.removesuffix(".gz") not in wanted:
                    path.unlink(missing_ok=True)
        self._temp.clean()

    def _make(self) -> None:
        with room(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._temp.clean()
            with contextlib.suppress(FileExistsError), (self._folder / ".gitignore").open("x", encoding="ascii") as file:
                file.write("*\n")

    def _keep(self, temporary: Path, name: str) -> Path:
        """A blob is the only copy of what it holds, so it is flushed to the disk."""
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(self._folder / name)
        sync_folder(self._folder)
        return self._folder / name

    def path(self, digest: str) -> Path | None:
        """The blob's file in either form, or None. Not checked."""
        name = hex_of(digest)
        return next((path for path in (self._folder / name, self._folder / f"{name}.gz") if os.path.lexists(path)), None)

    @contextlib.contextmanager
    def _open(self, digest: str, size: int | None) -> Iterator[_Source]:
        path = self.path(digest)
        if path is None:
            raise ArtifactError(
                "is not there",
                where=str(self._folder / hex_of(digest)),
                hint="copy the whole folder of the spec, blobs/ included, or capture again",
            )
        try:
            fd = open_regular(path, below=self._folder.parent)
        except OSError as error:
            raise ArtifactError(f"cannot be read: {error.strerror}", where=str(path), hint=_HINT) from None
        with os.fdopen(fd, "rb", buffering=0) as file:
            yield _Source(file, str(path), hex_of(digest), size, compressed=path.suffix == ".gz")


class _Source:
    """The bytes of a blob, inflated, hashed and counted as they are taken."""

    def __init__(self, file: BinaryIO, where: str, name: str, size: int | None, *, compressed: bool) -> None:
        self.where = where
        self.compressed = compressed
        self._tap: list[bytes] | None = None
        self._file = file
        self._name = name
        self._size = size
        self._seen = 0
        self._hasher = hashlib.sha256()
        self._chunks = self._inflated() if compressed else iter(self._read, b"")
        self._buffer = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """Up to `count` bytes; none only at the end."""
        if self._at == len(self._buffer):
            self._buffer, self._at = next(self._chunks, b""), 0
            self._seen += len(self._buffer)
            if self._size is not None and self._seen > self._size:
                raise self._bad(f"holds more than the {self._size} bytes that the spec says")
            self._hasher.update(self._buffer)
        data = self._buffer[self._at : self._at + count]
        self._at += len(data)
        return data

    def finish(self) -> None:
        """To be called at the end. Raises `ArtifactError` unless all that was taken is what the name says."""
        if self._size is not None and self._seen != self._size:
            raise self._bad(f"holds {self._seen} bytes where the spec says {self._size}")
        if self._hasher.hexdigest() != self._name:
            raise self._bad("its bytes are not the ones that its name says: it is damaged or was changed")

    def tapped(self) -> list[bytes]:
        """What was read of the file since this was asked last; from the first time on."""
        tap, self._tap = self._tap or [], []
        return tap

    def _read(self) -> bytes:
        try:
            data = self._file.read(CHUNK)
        except OSError as error:
            raise self._bad(f"cannot be read: {error.strerror}") from None
        if self._tap is not None:
            self._tap.append(data)
        return data

    def _inflated(self) -> Iterator[bytes]:
        """One gzip member after another, at most a chunk of output at a time; nothing may follow them."""
        data = self._read()
        while data:
            member = inflate.ZLIB.decompressobj(31)
            while not member.eof:
                try:
                    inflated = member.decompress(data, CHUNK)
                except inflate.ZLIB.error as error:
                    raise self._bad(f"is damaged: {error}") from None
                if inflated:
                    yield inflated
                if member.eof:
                    break
                data = member.unconsumed_tail or (b"" if len(inflated) == CHUNK else self._read())
                if not data and len(inflated) < CHUNK:
                    raise self._bad("is cut short")
            data = member.unused_data or self._read()

    def _bad(self, what: str) -> ArtifactError:
        return ArtifactError(what, where=self.where, hint=_HINT)


def key_of(path: Path) -> str:
    """Of a file: while it stays, so do the bytes."""
    one = path.lstat()
    return f"{path.name} {one.st_dev} {one.st_ino} {one.st_size} {one.st_mtime_ns} {one.st_ctime_ns}"


def _hashed(chunks: Iterable[bytes], hasher: hashlib._Hash) -> Iterator[bytes]:
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk


def compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Gzip members, one for each `CHUNK` of input, made on all cores. The same bytes however the input came."""
    from concurrent.futures import ThreadPoolExecutor

    workers = len(os.sched_getaffinity(0))
    pending: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in _blocks(chunks):
            pending.append(pool.submit(_member, block))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        for member in pending:
            yield member.result()


def _read_through(source: _Source) -> Iterator[bytes]:
    """The bytes of a tree's file as they lie there, while what they hold is read as strictly as when it is unpacked."""
    source.tapped()
    for _, chunks in tar.read(source.take, where=source.where):
        yield from source.tapped()
        for _ in chunks:
            yield from source.tapped()
    source.finish()
    yield from source.tapped()


def _member(block: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)  # a gzip header without name and time
    return packer.compress(block) + packer.flush()


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of `CHUNK`, so that the file does not depend on how they came."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= CHUNK:
            data = b"".join(parts)
            whole = size - size % CHUNK
            yield from (data[start : start + CHUNK] for start in range(0, whole, CHUNK))
            parts, size = [data[whole:]], size - whole
    if size:
        yield b"".join(parts)
