"""Leases on store entries. Garbage collection skips leased entries.

A command leases the whole store while it works: it holds a shared lock on `uses/all`. A command that runs for long
leases only what it needs: it locks a file `uses/<token>` that lists the names. The kernel releases a lock when the
process dies for any reason, so no lease is left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.schema.errors import StoreError
from repro_env.store.filenames import hex_of

_ALL = "all"
_STEP = 0.05


class Lease:
    """The lease of one process. It is taken when the store is opened and released when the process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = os.open(directory / _ALL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # waits while entries are being removed

    @contextlib.contextmanager
    def restrict_to(self, digests: Iterable[str]) -> Iterator[None]:
        """Lease only these layers, images and spec directories while the block runs."""
        names = "\n".join(sorted({hex_of(digest) for digest in digests}))
        path = self._directory / secrets.token_hex(8)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.write(fd, names.encode())
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            path.unlink(missing_ok=True)
            os.close(fd)

    @contextlib.contextmanager
    def exclusive(self, patience: float) -> Iterator[frozenset[str]]:
        """Lease the whole store exclusively; yields the names (hex) that long runs use. Others wait, so keep it short.

        Raises `StoreError` if other commands are running for more than `patience` seconds.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    fcntl.flock(self._fd, fcntl.LOCK_SH)  # the kernel released it when it refused the exclusive lock (flock(2))
                    raise StoreError(
                        f"other commands have been using the store for {patience:.0f} seconds",
                        where=str(self._directory.parent),
                        hint="try again when captures and rebuilds have finished; runs may continue",
                    ) from None
                time.sleep(_STEP)
        try:
            yield self._names(clean=True)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def names_in_use(self) -> frozenset[str]:
        """Return the names (hex) that long runs use now."""
        return self._names(clean=False)

    def _names(self, *, clean: bool) -> frozenset[str]:
        """Read the names of all leases. `clean`: remove those of dead processes.

        That is safe only with the exclusive lease, because a new file is not locked immediately.
        """
        names: set[str] = set()
        for path in self._directory.iterdir():
            if path.name == _ALL:
                continue
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    if clean:
                        path.unlink()
                except BlockingIOError:
                    names.update(path.read_text(encoding="ascii").split())
                finally:
                    os.close(fd)
        return frozenset(names)

    def close(self) -> None:
        """Release the lease."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the lease was never taken
            self.close()
