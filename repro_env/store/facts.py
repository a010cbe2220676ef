"""Small values that cost time to find out, by kind and key: `facts/<kind>/<sha256 of the key>`. A cache, nothing more."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TypeVar

from repro_env.io.files import atomic_write, room
from repro_env.model import codec
from repro_env.model.errors import SpecError
from repro_env.store.boot import touch_if_old

T = TypeVar("T")

_KIND = re.compile(r"[a-z][a-z0-9-]{0,40}")


class FactCache:
    """Safe to use from several threads and processes; the last to write wins. A file's time is that of its last use."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, kind: str, key: str) -> bytes | None:
        """The value, or None; a damaged one counts as absent."""
        path = self._path(kind, key)
        try:
            with path.open("rb") as file:
                stored = file.read()
                touch_if_old(path, os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            return None
        check, _, value = stored.partition(b"\n")
        return value if check == _check(key, value) else None

    def has(self, kind: str, key: str) -> bool:
        """Whether there is a value; it may turn out to be damaged."""
        return self._path(kind, key).is_file()

    def recall(self, kind: str, key: str, into: type[T]) -> T | None:
        """The value as a type; None too for one that another version of repro-env wrote in another shape."""
        value = self.get(kind, key)
        if value is None:
            return None
        try:
            return codec.decode(value, into, where=f"fact {kind}")
        except SpecError:
            return None

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Keep a value. Raises `DiskError` when there is no room."""
        path = self._path(kind, key)
        with room(self._root, len(value)):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(path, _check(key, value) + b"\n" + value, flush=False)

    def forget(self, kind: str, key: str) -> None:
        """Remove a value, if it is there."""
        self._path(kind, key).unlink(missing_ok=True)

    def _path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"not a kind of facts: {kind!r}")
        return self._root / kind / hashlib.sha256(key.encode()).hexdigest()


def _check(key: str, value: bytes) -> bytes:
    """Not flushed to the disk, so a value says itself whether it is whole."""
    return hashlib.sha256(key.encode() + b"\0" + value).hexdigest().encode()
