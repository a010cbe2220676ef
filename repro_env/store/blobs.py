"""Blobs: files named by the sha256 of their content, `blobs/<hex>`. A file with that name is complete."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator, Iterable
from pathlib import Path

from repro_env.io.files import room, sha256_of
from repro_env.oci.layer import Measured
from repro_env.schema.errors import ArtifactError
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp


class Blobs:
    """Complete files: wheels, other archives, and configs of images."""

    def __init__(self, root: Path, *, temp: Temp, boot: Boot) -> None:
        self._root = root
        self._temp = temp
        self._boot = boot

    def path(self, digest: str, *, again: bool = False) -> Path | None:
        """Return the file with these bytes (mode 0444), or None. It is read once after each start of the machine.

        `again`: read it in any case. A damaged file is removed.
        """
        name = hex_of(digest)
        path = self._root / name
        key = _key(path)
        if key is None:
            return None
        if not again and self._boot.is_marked(name, key):
            return path
        # The file was changed, or the machine was restarted since and may have lost power before the file was on the disk.
        with contextlib.suppress(OSError):
            if sha256_of(path) == name:
                self._boot.mark(name, key)
                return path
        path.unlink(missing_ok=True)
        return None

    def get(self, digest: str) -> bytes | None:
        """Return the bytes of a small file, or None."""
        path = self.path(digest)
        return path.read_bytes() if path is not None else None

    def put(self, chunks: Iterable[bytes], digest: str, *, where: str, size: int = 0) -> Path:
        """Store these bytes unless they are there. `where`: their source. `size`: in bytes, for messages.

        Raises `ArtifactError` if they do not have this digest, `DiskError` if the disk is full.
        """
        return self.path(digest) or self._write(chunks, hex_of(digest), where, size)

    def add(self, chunks: Iterable[bytes]) -> tuple[Path, str]:
        """Store bytes whose digest is not known yet. Returns the file and its digest. Raises `DiskError` if the disk is full."""
        path = self._write(chunks, "", "", 0)
        return path, f"sha256:{path.name}"

    def _write(self, chunks: Iterable[bytes], name: str, where: str, size: int) -> Path:
        with self._temp.directory() as temporary, room(self._root, size):
            actual = hex_of(write_hashed(temporary / "blob", chunks).digest)
            if name and actual != name:
                raise ArtifactError(
                    f"the file does not have the expected content: sha256 {actual[:16]}… instead of {name[:16]}…",
                    where=where,
                    hint="the file was changed or damaged there; get it from another source, or capture again",
                )
            self._boot.mark(actual, _key(temporary / "blob") or "")
            (temporary / "blob").replace(self._root / actual)
        return self._root / actual


def _key(path: Path) -> str | None:
    """Return a key of a file that changes when it is truncated or written to; None if the file is missing."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return f"{facts.st_size} {facts.st_mtime_ns}" if stat.S_ISREG(facts.st_mode) else None


def write_hashed(path: Path, chunks: Iterable[bytes]) -> Measured:
    """Write a new file with mode 0444. Returns its digest and size. A generator of `chunks` is closed, also if this fails."""
    measured = Measured(chunks)
    with contextlib.ExitStack() as stack:
        if isinstance(chunks, Generator):
            stack.callback(chunks.close)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        file = stack.enter_context(os.fdopen(fd, "wb", buffering=1 << 18))
        file.writelines(measured)
        file.flush()
        os.fchmod(fd, 0o444)
    return measured
