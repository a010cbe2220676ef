"""Bundled blobs: the `blobs/` directory next to a spec, with everything that cannot be downloaded again.

A blob is named by the sha256 of its bytes: `<hex>`, or `<hex>.gz` if it is compressed. No identity depends on the
compression. The directory is untrusted: its content is checked, and never decompressed beyond the expected size.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.io.files import chunks_of, room, sync_directory
from repro_env.oci import tar
from repro_env.oci.entry import CHUNK, Entry, Members
from repro_env.oci.inflate import gunzip
from repro_env.oci.layer import Measured, blocks
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError
from repro_env.store.blobs import Blobs, write_hashed
from repro_env.store.facts import FactCache
from repro_env.store.filenames import hex_of
from repro_env.store.specs.files import BLOB
from repro_env.store.temporary import Temp

if TYPE_CHECKING:
    from concurrent.futures import Future

_HINT = "delete the file and capture again, or copy it again from the capture"
_LEVEL = 1
BLOB_DIGEST = "bundled-blob"
"""Kind of the facts of proven gzip files, by `file_key`: the digest of the compressed bytes."""
_LISTED = "bundled-entries"


class SpecBlobs:
    """One directory of bundled blobs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._temp = Temp(directory)

    def add_tree(self, members: Members, *, facts: FactCache | None = None) -> TreeBlob:
        """Store a tree as the gzip of its layer tar. The same members give the same file.

        With `facts`, `has` and `entries` know later what the blob is without reading it: every file's entry has its sha256. Raises `DiskError` and what the members raise.
        """
        entries: list[Entry] = []

        def listed() -> Members:
            for entry, chunks in members:
                entries.append(entry)
                yield entry, chunks

        self._make()
        tree = Measured(tar.write(listed()))
        with room(self.directory), self._temp.directory() as temporary:
            packed = write_hashed(temporary / "blob", compress_chunks(tree))
            path = self._keep(temporary / "blob", hex_of(tree.digest) + ".gz")
        if facts is not None:
            facts.put("bundled", file_key(path), b"whole")
            facts.put(BLOB_DIGEST, file_key(path), packed.digest.encode())
            facts.put(_LISTED, f"{tree.digest} {tree.size}", codec.canonical(entries))
        return TreeBlob(sha256=tree.digest, size=tree.size, files=len(entries))

    def add_file(self, path: Path, digest: str, *, compress: bool = False) -> None:
        """Store a copy of a file, compressed or not. Raises `ArtifactError` if it does not have this digest."""
        self._make()
        with room(self.directory), self._temp.directory() as temporary, path.open("rb") as file:
            content: Iterable[bytes] = iter(lambda: file.read(CHUNK), b"")
            plain = Measured(content)
            written = write_hashed(temporary / "blob", compress_chunks(plain) if compress else content)
            actual = hex_of((plain if compress else written).digest)
            if actual != hex_of(digest):
                raise ArtifactError(
                    f"the file does not have the expected content (its sha256 is {actual[:16]}…)",
                    where=str(path),
                    hint="the file was changed; capture again",
                )
            self._keep(temporary / "blob", actual + ".gz" * compress)

    def restore(self, digest: str, chunks: Iterable[bytes], *, is_gzip: bool, size: int | None, where: str) -> int:
        """Store a blob from another source, as plain bytes or gzip. Returns its uncompressed size.

        It is stored only if it has this digest, and this size unless that is None. `where`: the source. Raises
        `ArtifactError` if it does not, or if the directory cannot be written, `DiskError`, and what `chunks` raises.
        """
        name = hex_of(digest) + (".gz" if is_gzip else "")
        try:
            self._make()
            with room(self.directory, size or 0), self._temp.directory() as temporary:
                write_hashed(temporary / name, chunks)
                try:
                    restored = Measured(SpecBlobs(temporary).chunks(digest, size)).read()
                except ArtifactError as error:
                    raise ArtifactError(
                        f"the blob from this source is not the one in the spec: {error.what}", where=where, hint=_HINT
                    ) from None
                self._keep(temporary / name, name)
        except PermissionError as error:
            hint = "copy the spec's directory to a writable directory"
            raise ArtifactError(
                f"the directory cannot be written: {error.strerror}", where=str(self.directory), hint=hint
            ) from None
        return restored.size

    def check(self, digest: str, facts: FactCache, *, is_noted: bool = True) -> None:
        """Raise `ArtifactError` if the blob is missing or damaged.

        It is read once, and again only if the file changes. `is_noted` False: nothing is written, and the next check reads it again.
        """
        path = self.path(digest)
        key = file_key(path) if path is not None else ""  # before it is read: a later change gives another key
        if facts.get("bundled", key) is None:
            Measured(self.chunks(digest)).read()
            if is_noted:
                facts.put("bundled", key, b"whole")

    def has(self, digest: str, facts: FactCache) -> bool:
        """Return whether the blob is there and undamaged."""
        try:
            self.check(digest, facts)
        except ArtifactError:
            return False
        return True

    def file(self, digest: str, size: int, blobs: Blobs) -> Path | None:
        """Return a file with the uncompressed blob, or None. A gzip blob is decompressed into the store's `blobs`.

        Only a decompressed blob is checked. Put an uncompressed one into the store, which checks it.
        """
        path = self.path(digest)
        if path is not None and path.suffix == ".gz":
            return blobs.put(self.chunks(digest, size), digest, where=str(path), size=size)
        return path if path is not None and path.is_file() and not path.is_symlink() else None

    def packed_file(self, digest: str, facts: FactCache) -> Path | None:
        """Return the file of an undamaged gzip blob; else None."""
        path = self.path(digest)
        return path if path is not None and path.suffix == ".gz" and self.has(digest, facts) else None

    def tree(self, blob: TreeBlob) -> Members:
        """Return the members of a bundled tree. Raises `ArtifactError` if it is missing or is not the expected tree.

        The check is complete only after the last member, so write the members where they can be removed again.
        """
        return tar.read(self.chunks(blob.sha256, blob.size), where=str(self.path(blob.sha256)))

    def entries(self, blob: TreeBlob, facts: FactCache) -> list[Entry]:
        """Return the paths of a bundled tree, with the sha256 of each file. Raises what `tree` raises.

        The list is stored. It is used without reading the blob as long as `has` knows that the file is undamaged.
        """
        path, key = self.path(blob.sha256), f"{blob.sha256} {blob.size}"
        if path is not None and facts.get("bundled", file_key(path)) is not None:
            listed = facts.recall(_LISTED, key, list[Entry])
            if listed is not None:
                return listed
        entries = []
        for entry, chunks in self.tree(blob):
            sha256 = hex_of(Measured(chunks).read().digest) if entry.kind == "file" else ""
            entries.append(msgspec.structs.replace(entry, sha256=sha256))
        facts.put(_LISTED, key, codec.canonical(entries))
        return entries

    def packed(self, blob: TreeBlob) -> Iterator[bytes]:
        """Yield the gzip of a bundled tree: the file's own bytes if it is gzip, which is checked first, as in `tree`."""
        path = self.path(blob.sha256)
        if path is not None and path.suffix == ".gz":
            for _, chunks in self.tree(blob):
                for _ in chunks:
                    pass
            yield from chunks_of(path, below=self.directory.parent)
        else:
            yield from compress_chunks(self.chunks(blob.sha256, blob.size))

    def chunks(self, digest: str, size: int | None = None) -> Iterator[bytes]:
        """Yield the uncompressed bytes of a blob. Raises `ArtifactError` at the end, or if there are more than `size`."""
        path = self.path(digest)
        if path is None:
            raise ArtifactError(
                "the blob is missing",
                where=str(self.directory / hex_of(digest)),
                hint="copy the complete directory of the spec, including blobs/, or capture again",
            )

        def damaged(what: str) -> ArtifactError:
            return ArtifactError(f"the blob {what}", where=str(path), hint=_HINT)

        raw = chunks_of(path, below=self.directory.parent)
        content = Measured(gunzip(raw, damaged) if path.suffix == ".gz" else raw)
        try:
            for chunk in content:
                if size is not None and content.size > size:
                    raise damaged(f"is larger than the {size} bytes in the spec")
                yield chunk
        except OSError as error:
            raise damaged(f"cannot be read: {error.strerror}") from None
        if size not in (None, content.size):
            raise damaged(f"has {content.size} bytes instead of the {size} in the spec")
        if hex_of(content.digest) != hex_of(digest):
            raise damaged("does not match its name: it is damaged or was changed")

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove all other blobs, and what killed processes left. Files that are not blobs are kept."""
        wanted = {hex_of(digest) for digest in digests}
        with contextlib.suppress(FileNotFoundError):
            for path in list(self.directory.iterdir()):
                if BLOB.fullmatch(path.name) and path.name.removesuffix(".gz") not in wanted:
                    path.unlink(missing_ok=True)
        self._temp.clean()

    def _make(self) -> None:
        with room(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._temp.clean()
            with contextlib.suppress(FileExistsError), (self.directory / ".gitignore").open("x", encoding="ascii") as file:
                file.write("*\n")

    def _keep(self, temporary: Path, name: str) -> Path:
        """Move a blob into place and flush it to the disk, because it may be the only copy of its content."""
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(self.directory / name)
        sync_directory(self.directory)
        return self.directory / name

    def path(self, digest: str) -> Path | None:
        """Return the file of a blob, compressed or not, or None. It is not checked."""
        name = hex_of(digest)
        return next((path for path in (self.directory / name, self.directory / f"{name}.gz") if os.path.lexists(path)), None)


def file_key(path: Path) -> str:
    """Return a key of a file that changes whenever the file is changed or replaced."""
    status = path.lstat()
    return f"{path.name} {status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def compress_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress bytes with all cores: one gzip member for each `CHUNK` of input. The result does not depend on the chunks."""
    from concurrent.futures import ThreadPoolExecutor

    workers = len(os.sched_getaffinity(0))
    pending: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for block in blocks(chunks, CHUNK):
            pending.append(pool.submit(_member, block))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        for member in pending:
            yield member.result()


def _member(block: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)  # wbits=31: a gzip header without name and time
    return packer.compress(block) + packer.flush()
