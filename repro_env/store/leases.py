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
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.io import filesystem
from repro_env.io.files import lock, try_lock
from repro_env.schema.errors import StoreError
from repro_env.store.filenames import hex_of

_ALL = "all"


class Lease:
    """The lease of one process. It is taken when the store is opened and released when the process ends."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = os.open(directory / _ALL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._fd)
        lock(self._fd, fcntl.LOCK_SH)  # waits while entries are being removed

    @contextlib.contextmanager
    def restrict_to(self, digests: Iterable[str]) -> Iterator[None]:
        """Lease only these layers, images and spec directories while the block runs."""
        names = "\n".join(sorted({hex_of(digest) for digest in digests}))
        path = self._directory / secrets.token_hex(8)
        with path.open("x", encoding="ascii") as file:
            try:
                lock(file.fileno())
                file.write(names)
                file.flush()
                lock(self._fd, fcntl.LOCK_UN)
                yield
            finally:
                lock(self._fd, fcntl.LOCK_SH)
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[frozenset[str]]:
        """Lease the whole store exclusively; yields the names (hex) that long runs use. Others wait, so keep it short.

        Raises `StoreError` if other commands are running.
        """
        if option := filesystem.local_locks(self._directory):
            raise StoreError(
                f"it cannot be known whether other machines use the store: locks hold only on this one ({option})",
                where=str(self._directory.parent),
                hint="remove the directory when no machine uses it, or use a store on a local disk",
            )
        if not try_lock(self._fd):
            lock(self._fd, fcntl.LOCK_SH)  # the kernel released it when it refused the exclusive lock (flock(2))
            raise StoreError(
                "other commands are using the store",
                where=str(self._directory.parent),
                hint="try again when captures and rebuilds have finished; runs may continue",
            )
        try:
            yield self._names()
        finally:
            lock(self._fd, fcntl.LOCK_SH)

    def _names(self) -> frozenset[str]:
        """Return the names that long runs use now, and remove the leases of dead processes.

        That is safe only with the exclusive lease, because a new file is not locked immediately.
        """
        names: set[str] = set()
        for path in self._directory.iterdir():
            if path.name != _ALL:
                with path.open(encoding="ascii") as file:
                    if try_lock(file.fileno(), fcntl.LOCK_SH):
                        path.unlink()
                    else:
                        names.update(file.read().split())
        return frozenset(names)
