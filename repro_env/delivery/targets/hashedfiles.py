"""Blobs that an output keeps as files. They are hashed while they are written, and hashed again after any change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from repro_env.io.files import room, sha256_of
from repro_env.schema.errors import ArtifactError, DiskError, UsageError
from repro_env.schema.image import Blob
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of


class HashedFiles:
    """Remembers which files were hashed since the machine was started. Safe to use from several processes."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot

    def has_blob(self, path: Path, blob: Blob) -> bool:
        """Return whether the file holds the blob. Its bytes are read only if it changed since it was hashed."""
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size != blob.size:
                return False
            key = _key(path, blob)
            if self._boot.is_marked(_name(path), key):
                return True
            if sha256_of(path) != hex_of(blob.digest) or _key(path, blob) != key:
                return False
        except OSError:
            return False
        self._boot.mark(_name(path), key)
        return True

    def add(self, path: Path, blob: Blob) -> None:
        """Record a file that was hashed while it was written."""
        self._boot.mark(_name(path), _key(path, blob))


@contextmanager
def write_errors(directory: Path) -> Iterator[None]:
    """Turn errors of writing below a directory that the user named into `UsageError` or `DiskError`.

    Use it only for steps that read no other files.
    """
    try:
        with space_errors(directory):
            yield
    except OSError as error:
        raise UsageError(
            f"the output cannot be written: {error.strerror}", where=str(directory), hint="name another path"
        ) from None


@contextmanager
def space_errors(directory: Path) -> Iterator[None]:
    """Like `io.files.room`, for a directory outside of the store."""
    try:
        with room(directory):
            yield
    except DiskError as error:
        if error.where != str(directory):
            raise  # the error is about another directory
        raise DiskError(error.what, where=error.where, hint="free some disk space there, or name another path") from None


def write_blob(chunks: Iterable[bytes], path: Path, media_type: str, known: Blob | None) -> Blob:
    """Write a new file and return its descriptor. Raises `ArtifactError` if it is not the blob `known`."""
    hasher, size = hashlib.sha256(), 0
    with path.open("xb", buffering=0) as file:
        for chunk in chunks:
            hasher.update(chunk)
            size += len(chunk)
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
    blob = Blob(media_type=media_type, digest=f"sha256:{hasher.hexdigest()}", size=size)
    if known is not None and (blob.digest, blob.size) != (known.digest, known.size):
        raise ArtifactError(
            f"the layer has the digest {blob.digest[:19]}…, not {known.digest[:19]}… as before",
            where="a layer",
            hint="one of its packages was changed or is damaged; rebuild again",
        )
    return blob


def _key(path: Path, blob: Blob) -> str:
    facts = path.lstat()
    return f"{blob.digest} {facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"


def _name(path: Path) -> str:
    return "kept-" + hashlib.sha256(str(path).encode()).hexdigest()[:32]
