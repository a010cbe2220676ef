"""What a process uses of the store, for as long as it lives. Whatever removes things asks here first.

A command uses everything while it works: it holds `uses/all`, shared. One that runs for long says by name what it
needs, and lets go of the rest: a file `uses/<token>`, locked, with the names in it. The kernel drops a lock with
its process, however that dies, so nothing stays in use for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.model.errors import StoreError
from repro_env.store.digests import hex_of

_ALL = "all"
_STEP = 0.05


class Lease:
    """Of one process. Taken when the store is opened, given back when it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = os.open(folder / _ALL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # waits while things are being removed, which takes a moment

    @contextlib.contextmanager
    def only(self, digests: Iterable[str]) -> Iterator[None]:
        """Use no more than what these digests name while the block runs: layers, images, folders of specs."""
        names = "\n".join(sorted({hex_of(digest) for digest in digests}))
        path = self._folder / secrets.token_hex(8)
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
    def alone(self, patience: float) -> Iterator[frozenset[str]]:
        """Nobody else uses anything but these names (hex) while the block runs. Others wait: keep it short.

        Raises `StoreError` when other commands are at work for longer than `patience` seconds.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"other commands have been at work in it for {patience:.0f} seconds",
                        where=str(self._folder.parent),
                        hint="try again when captures and rebuilds are over; runs need not be",
                    ) from None
                time.sleep(_STEP)
        try:
            yield self._named(clean=True)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def named(self) -> frozenset[str]:
        """What long runs use now (hex)."""
        return self._named(clean=False)

    def _named(self, *, clean: bool) -> frozenset[str]:
        """`clean`: remove what dead processes left; only when alone, since a new one is not locked from its first moment on."""
        names: set[str] = set()
        for path in self._folder.iterdir():
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
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was never taken
            self.close()
