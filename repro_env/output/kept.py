"""Blobs that an output keeps as files: written and hashed at once, and trusted later only while they stay the same file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from repro_env.io.files import room, sha256_of
from repro_env.model.errors import ArtifactError, DiskError, UsageError
from repro_env.model.image import Blob
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of


class Kept:
    """Remembers which files were hashed since the machine was started. Safe from several processes."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot

    def whole(self, path: Path, blob: Blob) -> bool:
        """Whether the file holds the blob. Its bytes are read, unless it still is the file that was hashed before."""
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size != blob.size:
                return False
            key = _key(path, blob)
            if self._boot.seen(_name(path), key):
                return True
            if sha256_of(path) != hex_of(blob.digest) or _key(path, blob) != key:
                return False
        except OSError:
            return False
        self._boot.see(_name(path), key)
        return True

    def same(self, path: Path, *, now: bool = False) -> bool:
        """Whether a file of ours still is the one that `now` was said of."""
        try:
            key = _file_key(path)
        except OSError:
            return False
        if now:
            self._boot.see(_name(path), key)
        return self._boot.seen(_name(path), key)

    def see(self, path: Path, blob: Blob) -> None:
        """The file was hashed while it was written."""
        self._boot.see(_name(path), _key(path, blob))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What goes wrong in writing below a folder that the user named, as a sentence about that folder.

    Only for steps that read nothing else. Raises `UsageError`, `DiskError`.
    """
    try:
        with roomy(folder):
            yield
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(folder), hint="name another place") from None


@contextmanager
def roomy(folder: Path) -> Iterator[None]:
    """As `io.files.room`, for a folder that is not the store's."""
    try:
        with room(folder):
            yield
    except DiskError as error:
        if error.where != str(folder):
            raise  # of what was read meanwhile
        raise DiskError(error.what, where=error.where, hint="free some room there, or name another place") from None


def sink(chunks: Iterable[bytes], path: Path, media_type: str, known: Blob | None) -> Blob:
    """Write a new file and say what it is. Raises `ArtifactError` when it is another blob than `known`."""
    hasher, size = hashlib.sha256(), 0
    with path.open("xb", buffering=0) as file:
        for chunk in chunks:
            hasher.update(chunk)
            size += len(chunk)
            left = memoryview(chunk)
            while left:
                left = left[file.write(left) :]
    blob = Blob(media_type=media_type, digest=f"sha256:{hasher.hexdigest()}", size=size)
    if known is not None and (blob.digest, blob.size) != (known.digest, known.size):
        raise ArtifactError(
            f"became {blob.digest[:19]}… and not {known.digest[:19]}… as before",
            where="a layer",
            hint="what it is made of was changed or damaged",
        )
    return blob


def _key(path: Path, blob: Blob) -> str:
    return f"{blob.digest} {_file_key(path)}"


def _file_key(path: Path) -> str:
    facts = path.lstat()
    return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"


def _name(path: Path) -> str:
    return "kept-" + hashlib.sha256(str(path).encode()).hexdigest()[:32]
