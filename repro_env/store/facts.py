"""A cache of small values that take time to compute, by kind and key: `facts/<kind>/<sha256 of the key>`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from repro_env.io.files import atomic_write, room
from repro_env.schema import codec
from repro_env.schema.errors import SpecError

T = TypeVar("T")

_KIND = re.compile(r"[a-z][a-z0-9-]{0,40}")


class FactCache:
    """Safe to use from several threads and processes; the last write wins. A file's time is the time of its last use."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the value, or None if it is missing or damaged."""
        path = self._path(kind, key)
        try:
            stored = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        check, _, value = stored.partition(b"\n")
        return value if check == _check(key, value) else None

    def recall(self, kind: str, key: str, into: type[T]) -> T | None:
        """Return the value as a type; None also if another version of repro-env wrote it in another format."""
        value = self.get(kind, key)
        if value is None:
            return None
        try:
            return codec.decode(value, into, where=f"fact {kind}")
        except SpecError:
            return None

    def keep(self, kind: str, key: str, into: Any, make: Callable[[], T]) -> T:
        """Return the value of the type `into` that was kept, else make and keep it. One that is not UTF-8 is made each time."""
        with contextlib.suppress(msgspec.MsgspecError):  # another version of repro-env may have written it
            if (kept := self.get(kind, key)) is not None:
                value: T = codec.unpack(kept, into)
                return value
        made = make()
        with contextlib.suppress(UnicodeEncodeError):
            self.put(kind, key, msgspec.msgpack.encode(made))
        return made

    def put(self, kind: str, key: str, value: bytes) -> None:
        """Store a value. Raises `DiskError` if the disk is full."""
        path = self._path(kind, key)
        with room(self._root, len(value)):
            path.parent.mkdir(mode=0o700, exist_ok=True)
        atomic_write(path, _check(key, value) + b"\n" + value, flush=False)

    def _path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"invalid kind of facts: {kind!r}")
        return self._root / kind / hashlib.sha256(key.encode()).hexdigest()


def _check(key: str, value: bytes) -> bytes:
    """Return the checksum that is stored with a value, because values are not flushed to the disk."""
    return hashlib.sha256(key.encode() + b"\0" + value).hexdigest().encode()
