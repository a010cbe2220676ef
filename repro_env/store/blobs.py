"""Blobs: files named by the sha256 of what is in them, `blobs/<hex>`. A file that is there is whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from repro_env.io.files import room, sha256_of
from repro_env.model.errors import ArtifactError
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp


class Blobs:
    """Whole files, mostly wheels."""

    def __init__(self, root: Path, *, temp: Temp, boot: Boot) -> None:
        self._root = root
        self._temp = temp
        self._boot = boot

    def path(self, digest: str) -> Path | None:
        """The file with these bytes, mode 0444, or None."""
        name = hex_of(digest)
        path = self._root / name
        key = _key(path)
        if key is None:
            return None
        if self._boot.seen(name, key):
            self._boot.use(name)
            return path
        # The machine was restarted since, and may have gone down before all of it was on the disk; or the file was changed.
        if not self.verify(digest):
            path.unlink(missing_ok=True)
            return None
        self._boot.see(name, key)
        return path

    def verify(self, digest: str) -> bool:
        """Whether the file has the bytes of its name: every byte is read. False too when it is not there."""
        name = hex_of(digest)
        try:
            return sha256_of(self._root / name) == name
        except OSError:
            return False

    def put(self, chunks: Iterable[bytes], digest: str, *, where: str, size: int = 0) -> Path:
        """Keep these bytes, unless they are here. `where` names their source; `size` in bytes, for messages.

        Raises `ArtifactError` when they are other bytes than `digest` names, `DiskError` when there is no room.
        """
        name = hex_of(digest)
        if found := self.path(digest):
            return found
        with self._temp.folder() as temporary, room(self._root, size):
            got = write_hashed(temporary / "blob", chunks)
            if got != name:
                raise ArtifactError(
                    f"gave other bytes than expected: sha256 {got[:16]}… instead of {name[:16]}…",
                    where=where,
                    hint="the file was changed or damaged there; fetch it from another place, or capture again",
                )
            self._boot.see(name, _key(temporary / "blob") or "")
            (temporary / "blob").replace(self._root / name)
        return self._root / name

    def remove(self, digest: str) -> None:
        """Remove a blob, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            (self._root / hex_of(digest)).unlink()


def _key(path: Path) -> str | None:
    """Of a file: one that is cut or written to has another. None when there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return f"{facts.st_size} {facts.st_mtime_ns}" if stat.S_ISREG(facts.st_mode) else None


def write_hashed(path: Path, chunks: Iterable[bytes]) -> str:
    """Write a new file, mode 0444; returns the hex sha256 of what was written."""
    hasher = hashlib.sha256()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=1 << 18) as file:
        for chunk in chunks:
            hasher.update(chunk)
            file.write(chunk)
        file.flush()
        os.fchmod(fd, 0o444)
    return hasher.hexdigest()
