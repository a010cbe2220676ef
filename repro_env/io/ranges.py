"""Read parts of a remote file through HTTP range requests."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from repro_env.io.failures import cut_error
from repro_env.io.response import Answer

TRIES = 3
"""Number of tries if a transfer is cut off."""
TAIL = 32 << 10
"""Bytes to fetch first, from the end: they contain a wheel's central directory, and usually its RECORD."""
STEP = 32 << 10
"""Smallest number of bytes to fetch. Doubled for each sequential read, up to `MAX_STEP`."""
MAX_STEP = 4 << 20


class RangesRefusedError(Exception):
    """The server does not support range requests for this file. Fetch the complete file instead."""


class RangeFile(io.RawIOBase):
    """A seekable remote file that fetches what is read. Fetched parts stay in memory until it is closed."""

    def __init__(self, get: Callable[[dict[str, str]], AbstractContextManager[Answer]], url: str) -> None:
        super().__init__()
        self._get = get
        self._url = url
        self._parts: dict[int, bytes] = {}
        self._position = 0
        self._step = STEP
        self._next = -1
        self.size = self._fetch_tail()

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
        parts = []
        while self._position < end:
            part = self._part(self._position, end)
            parts.append(part)
            self._position += len(part)
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def _part(self, position: int, end: int) -> bytes:
        """Return bytes from `position` up to `end` or less, and fetch them if necessary."""
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

    def _fetch_tail(self) -> int:
        """Fetch the end of the file, and return the file's size."""
        with self._get({**_UNCACHED, "Range": f"bytes=-{TAIL}"}) as answer:
            if answer.status == 206:
                start, total = answer.range
                if start >= 0 and total > start and (part := answer.read_exactly(total - start)) is not None:
                    self._parts[start] = part
                    return total
        # Some servers do not support ranges that count from the end. The answer to an ordinary range contains the size.
        with self._get({**_UNCACHED, "Range": "bytes=0-0"}) as answer:
            start, total = answer.range if answer.status == 206 else (-1, -1)
        if start != 0 or total < 1:
            raise RangesRefusedError
        return total

    def _fetch(self, start: int, stop: int) -> bytes:
        for _ in range(TRIES):
            with self._get({**_UNCACHED, "Range": f"bytes={start}-{stop - 1}"}) as answer:
                if answer.status != 206 or answer.range != (start, self.size):
                    raise RangesRefusedError
                part = answer.read_exactly(stop - start)
            if part is not None:
                return part
        raise cut_error(self._url)


_UNCACHED = {"Accept-Encoding": "identity", "Cache-Control": "no-cache"}
