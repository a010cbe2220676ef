"""Compute the diff ID of a layer, and check the content of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from queue import Queue
from threading import Thread

from repro_env.oci import tar
from repro_env.oci.entry import Entry, Members
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, BuildError

_BLOCK = 1 << 18
"""Bytes that are hashed at once. Smaller pieces are joined."""
_WAITING = 2
"""Most blocks that wait to be hashed."""


class HashThread(AbstractContextManager["HashThread"]):
    """The sha256 of bytes, computed by a thread while this one makes the next bytes. The thread ends with the `with` block."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._blocks: Queue[bytes] = Queue(_WAITING)
        self._pieces: list[bytes] = []
        self._size = 0
        self._thread: Thread | None = None

    def update(self, data: bytes) -> None:
        """Add bytes."""
        if len(data) < _BLOCK:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < _BLOCK:
                return
            data = b""
        if self._thread is None:
            self._thread = Thread(target=self._hash, daemon=True)
            self._thread.start()
        for block in filter(None, (b"".join(self._pieces), data)):
            self._blocks.put(block)
        self._pieces, self._size = [], 0

    def digest(self) -> str:
        """Return the `sha256:<hex>` of all bytes. Call it once, at the end."""
        self.__exit__()
        self._hasher.update(b"".join(self._pieces))
        return f"sha256:{self._hasher.hexdigest()}"

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._blocks.put(b"")
            self._thread.join()
            self._thread = None

    def _hash(self) -> None:
        while block := self._blocks.get():
            self._hasher.update(block)


class Measured:
    """Bytes that are hashed and counted while they are read. They are read once."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self._hasher = hashlib.sha256()
        self.size = 0
        """Bytes read so far."""

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self._hasher.update(chunk)
            self.size += len(chunk)
            yield chunk

    def read(self) -> Measured:
        """Read all bytes, without keeping them."""
        for _ in self:
            pass
        return self

    @property
    def digest(self) -> str:
        """The `sha256:<hex>` of the bytes read so far."""
        return f"sha256:{self._hasher.hexdigest()}"


def diff_id(members: Members) -> str:
    """Return `sha256:<hex>` of the layer's tar (OCI: DiffID)."""
    with HashThread() as hasher:
        for chunk in tar.write(members):
            hasher.update(chunk)
        return hasher.digest()


def check_diff_id(actual: str, expected: str) -> None:
    """Raise `BuildError` unless a layer has the expected diff ID."""
    if actual != expected:
        raise BuildError(
            f"the layer is {actual}, not the expected {expected}",
            hint="the layer was made from other content than the spec describes; rebuild from the wheels, or capture again",
        )


def check_contents(members: Members) -> Members:
    """Yield the same members and check the content of each file against the sha256 of its entry while it is read."""
    for entry, chunks in members:
        yield entry, (check_content(entry, chunks) if entry.kind == "file" else chunks)


def blocks(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of `size`, and a shorter last one, so that the result does not depend on the chunks."""
    parts: list[bytes] = []
    count = 0
    for chunk in chunks:
        parts.append(chunk)
        count += len(chunk)
        if count >= size:
            data = b"".join(parts)
            whole = count - count % size
            yield from (data[start : start + size] for start in range(0, whole, size))
            parts, count = [data[whole:]], count - whole
    if count:
        yield b"".join(parts)


def check_content(entry: Entry, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a file. Raises `ArtifactError` at its end if it does not have the sha256 of its entry."""
    measured = Measured(chunks)
    yield from measured
    if measured.digest != f"sha256:{entry.sha256}":
        raise ArtifactError(
            f"the content of the file does not have the expected sha256 {entry.sha256[:12]}…",
            where=entry.path,
            hint="the copy that it was read from is damaged or was changed",
        )


def recipe(entries: Iterable[Entry]) -> str:
    """Return `sha256:<hex>` of the entries: layers with equal recipes have equal diff IDs. No file is read."""
    return codec.digest(
        [tar.RULE, *[[entry.path, entry.kind, entry.executable, entry.size, entry.sha256, entry.target] for entry in entries]]
    )
