"""A remote file as a seekable one: only what is read of it is fetched."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from repro_env.io.answer import content_range, cut, exactly

TRIES = 3
"""Of a transfer that was cut."""
TAIL = 32 << 10
"""Bytes fetched first, from the end: a wheel's central directory, and RECORD mostly too."""
STEP = 32 << 10
"""Bytes fetched at least; doubled for reads that go on where the last fetch ended, up to `MAX_STEP`."""
MAX_STEP = 4 << 20


class RangesRefusedError(Exception):
    """The server does not give parts of this file: fetch the whole."""


class RangeFile(io.RawIOBase):
    """A remote file as a seekable one. Parts once fetched stay in memory until it is closed."""

    def __init__(self, get: Callable[[dict[str, str]], AbstractContextManager[Any]], url: str) -> None:
        super().__init__()
        self._get = get
        self._url = url
        self._parts: dict[int, bytes] = {}
        self._position = 0
        self._step = STEP
        self._next = -1
        self.size = self._first()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._position, self.size)[whence]
        if start + offset < 0:
            raise OSError("negative seek")
        self._position = start + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self._position + size, self.size)
        found = []
        while self._position < end:
            part = self._held(self._position, end)
            found.append(part)
            self._position += len(part)
        return b"".join(found)

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def _held(self, position: int, end: int) -> bytes:
        """Bytes from `position` on, at most to `end`; fetched if need be."""
        upper = self.size
        for start, part in self._parts.items():
            if start <= position < start + len(part):
                return part[position - start : end - start]
            if position < start < upper:
                upper = start
        self._step = min(self._step * 2, MAX_STEP) if position == self._next else STEP
        stop = min(upper, max(end, position + self._step))
        self._next = stop
        self._parts[position] = self._fetch(position, stop)
        return self._parts[position][: end - position]

    def _first(self) -> int:
        """Fetch the tail, and so the size."""
        with self._get({**_WHOLE, "Range": f"bytes=-{TAIL}"}) as response:
            if response.status_code == 206:
                start, total = content_range(response)
                if start >= 0 and total > start and (part := exactly(response, total - start)) is not None:
                    self._parts[start] = part
                    return total
        # Some servers know no range that counts from the end; what they make of an ordinary one tells the size.
        with self._get({**_WHOLE, "Range": "bytes=0-0"}) as response:
            start, total = content_range(response) if response.status_code == 206 else (-1, -1)
        if start != 0 or total < 1:
            raise RangesRefusedError
        return total

    def _fetch(self, start: int, stop: int) -> bytes:
        for _ in range(TRIES):
            with self._get({**_WHOLE, "Range": f"bytes={start}-{stop - 1}"}) as response:
                if response.status_code != 206 or content_range(response) != (start, self.size):
                    raise RangesRefusedError
                part = exactly(response, stop - start)
            if part is not None:
                return part
        raise cut(self._url)


_WHOLE = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}
