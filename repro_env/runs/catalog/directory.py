"""A catalog in a directory that a team shares.

    DIRECTORY/
        catalog.json           the version of the format, written by the first push
        blobs/sha256/<hex>     as in an OCI image layout
        runs/<tag>.json        the manifests of the parts

It is not an OCI image layout, because that has one index, which every push would have to lock and replace. Here, every file is
written once, under a name that only its content decides, and moved into place when it is complete. So no lock is needed, and
network file systems are no exception. Files and directories get the permissions of the catalog's directory: its owner decides
with them who may read and push (usually a group, with the setgid bit).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from repro_env.io.files import chunks_of, read_regular, room, sync_directory
from repro_env.oci.layer import Measured
from repro_env.oci.manifest import MAX_SIZE, Descriptor
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, RecordError, UsageError, os_errors_as
from repro_env.schema.image import Blob
from repro_env.store.filenames import hex_of

_FAMILY = "repro-env/catalog"
_MARK = codec.pretty({"schema": f"{_FAMILY}/1"})
_INCOMING = ".incoming-"
_FORGOTTEN = 7 * 86400.0
"""Seconds after which an incomplete file belongs to a push that was killed."""
_HINT = "it was damaged or changed: delete it, and push the run again from where it ran"


class DirectoryCatalog:
    """See `place.Catalog`."""

    def __init__(self, directory: Path) -> None:
        """`directory` exists, and is a catalog or empty. Raises `UsageError`, `SpecVersionError`. Nothing is written yet."""
        self.name = str(directory)
        self._root = directory
        self._blobs = directory / "blobs" / "sha256"
        self._runs = directory / "runs"
        self._check()

    def tags(self) -> list[str]:
        with os_errors_as(RecordError, "the directory cannot be read", where=self._runs, hint="ask its owner for permission"):
            try:
                return [name.removesuffix(".json") for name in os.listdir(self._runs)]  # noqa: PTH208
            except FileNotFoundError:
                return []

    def manifest(self, tag: str, digest: str) -> bytes:
        path = self._runs / f"{tag}.json"
        with os_errors_as(ArtifactError, "the file cannot be read", where=path, hint=_HINT):
            data = read_regular(path, MAX_SIZE, below=self._root)
        if codec.digest_of(data) != digest:
            raise ArtifactError("the file does not have the digest in its name", where=str(path), hint=_HINT)
        return data

    def has(self, blob: Blob | Descriptor) -> bool:
        try:
            facts = self._path(blob).lstat()
        except OSError:
            return False
        return stat.S_ISREG(facts.st_mode) and facts.st_size == blob.size

    def read(self, blob: Blob | Descriptor) -> Iterator[bytes]:
        path = self._path(blob)
        content = Measured(chunks_of(path, below=self._root))
        with os_errors_as(ArtifactError, "the file cannot be read", where=path, hint=_HINT):
            for chunk in content:
                if content.size > blob.size:
                    break
                yield chunk
        if content.size != blob.size:
            what = f"the file has {'at least ' * (content.size > blob.size)}{content.size:,} bytes instead of {blob.size:,}"
            raise ArtifactError(what, where=str(path), hint=_HINT)
        if content.digest != blob.digest:
            raise ArtifactError("the file does not have the digest in its name", where=str(path), hint=_HINT)

    def prepare(self) -> None:
        self._check()
        with self._writing():
            if not (self._root / "catalog.json").exists():
                self._write(self._root / "catalog.json", (_MARK,))
            for directory in (self._blobs.parent, self._blobs, self._runs):
                with contextlib.suppress(FileExistsError):
                    directory.mkdir()
                    directory.chmod(self._mode & 0o7777)
                probe = directory / f"{_INCOMING}{secrets.token_hex(8)}"
                probe.touch(exist_ok=False)
                probe.unlink()
            self._remove_forgotten()

    def write(self, blob: Blob, chunks: Callable[[], Iterator[bytes]]) -> None:
        with self._writing(blob.size):
            self._write(self._path(blob), chunks(), blob)

    def add(self, tag: str, manifest: bytes) -> None:
        with self._writing():
            self._write(self._runs / f"{tag}.json", (manifest,))

    def close(self) -> None:
        pass

    def _path(self, blob: Blob | Descriptor) -> Path:
        return self._blobs / hex_of(blob.digest)

    @property
    def _mode(self) -> int:
        return self._root.stat().st_mode

    def _check(self) -> None:
        path = self._root / "catalog.json"
        hint = "ask its owner for permission, or name another directory"
        with os_errors_as(UsageError, "the catalog cannot be read", where=path, hint=hint):
            try:
                data = read_regular(path, 1000)
            except FileNotFoundError:
                data = b""
        if data:
            codec.schema_of(data, family=_FAMILY, newest=1, where=str(path))
        elif names := [name for name in os.listdir(self._root) if not name.startswith(".")]:  # noqa: PTH208
            what = f"this directory is neither empty nor a catalog of runs: it has {min(names)!r}"
            raise UsageError(what, where=self.name, hint="name an empty directory, which then becomes a catalog")

    @contextlib.contextmanager
    def _writing(self, size: int = 0) -> Iterator[None]:
        """Translate errors of writing. Nothing else may raise `OSError` in the block."""
        hint = "ask its owner for permission to write to it and its directories"
        with os_errors_as(UsageError, "the catalog cannot be written", default=self._root, hint=hint), room(self._root, size):
            yield

    def _write(self, path: Path, chunks: Iterable[bytes], expected: Blob | None = None) -> None:
        """Write a file and move it into place. An existing file is replaced, since it may be damaged."""
        temporary = path.with_name(f"{_INCOMING}{secrets.token_hex(8)}")
        try:
            content = Measured(chunks)
            with temporary.open("xb") as file:
                file.writelines(content)
                file.flush()
                os.fchmod(file.fileno(), self._mode & 0o444)
                os.fsync(file.fileno())
            if expected is not None and (content.digest, content.size) != (expected.digest, expected.size):
                what = f"this blob is {content.digest}, but another digest was expected"
                raise ArtifactError(what, where=expected.digest, hint="its file has changed; try again")
            temporary.replace(path)
            sync_directory(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _remove_forgotten(self) -> None:
        for directory in (self._root, self._blobs, self._runs):
            for path in directory.glob(f"{_INCOMING}*"):
                with contextlib.suppress(OSError):  # it belongs to another user, or was moved into place
                    if path.lstat().st_mtime < time.time() - _FORGOTTEN:
                        path.unlink()
