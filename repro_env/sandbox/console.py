"""Logs of a command's output in the run's directory: secrets are redacted, and long logs keep their beginning and end.

The output goes through this process on its way to the caller, so logging must not slow it down: it is searched for secrets
in small pieces, at intervals. If it arrives faster than that, a part is omitted, and a line of the log says so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

from repro_env.schema import redact

STDOUT, STDERR, BOTH = "stdout.log", "stderr.log", "console.log"
NAMES = (STDOUT, STDERR, BOTH)
"""Files in a run's directory. If stdout and stderr are the same terminal, file or pipe, there is only `console.log`."""
HEAD = TAIL = 2 << 20
"""Bytes that a log keeps of the beginning and of the end."""
_PIECE = 1 << 18
"""Bytes that are searched for secrets at once."""
_LINE = 1 << 16
"""Bytes of a line that are buffered until its end arrives, because a secret is not found if it is split."""
_PAUSE = 0.5
"""Least number of seconds between two writes."""
_PAUSE_FACTOR = 20
"""The pause is at least this many times as long as the last write took."""


class Log:
    """A log file that grows while the command runs: the beginning, a line about what was omitted, the end."""

    def __init__(self, path: Path, hidden: Collection[str]) -> None:
        """Create the file. `hidden` are known secret values. Raises `OSError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o644)
        self._hidden = hidden
        self._room = HEAD
        """Bytes that still fit in the beginning."""
        self._first, self._last = bytearray(), bytearray()
        """Bytes not yet written, of the beginning and of the end."""
        self._head = self._tail = 0
        """Bytes written to the file, of the beginning and of the end, without the line between them."""
        self._omitted = 0
        """Bytes that are missing between the beginning and the end."""
        self._mark = b""
        """The line about the omitted bytes, if there are any."""
        self._has_gap = False
        """Whether bytes were omitted since the last write."""
        self._due = 0.0
        """When the next write may take place (`time.monotonic`)."""
        self.problem = ""
        """Why the log is incomplete."""

    def add(self, data: bytes) -> None:
        """Add output of the command. Never raises."""
        if self._room:
            self._first += data[: self._room]
            data = data[self._room :]
            self._room = max(0, HEAD - self._head - len(self._first))
            if not self._room:  # a line is written to the beginning or to the end, never split between them
                end = len(self._first) if len(self._first) - (cut := _complete_lines(self._first)) > _LINE else cut
                data = bytes(self._first[end:]) + data
                del self._first[end:]
        self._last += data
        if len(self._last) > 2 * TAIL:
            self._has_gap = True
            self._omitted += len(self._last) - TAIL
            del self._last[:-TAIL]
        self.tick()

    def delay(self) -> float | None:
        """Seconds until `tick` will write something; None if there is nothing to write."""
        return max(0.0, self._due - time.monotonic()) if self._first or self._last else None

    def tick(self) -> None:
        """Write a piece of the buffered output, if the pause is over."""
        now = time.monotonic()
        if now >= self._due:
            self._write(last=False)
            self._due = time.monotonic() + max(_PAUSE, _PAUSE_FACTOR * (time.monotonic() - now))

    def close(self) -> None:
        """Write all buffered output and close the file."""
        self._room = 0
        while self._first or self._last:
            self._write(last=True)
        with contextlib.suppress(OSError):
            self._put(b"", is_head=False, most=TAIL)
        os.close(self._handle)

    def _write(self, *, last: bool) -> None:
        """Write one piece. With `last`, also write an incomplete line."""
        is_head = bool(self._first)
        waiting = self._first if is_head else self._last
        if not is_head and self._has_gap:  # skip the line that lost its start
            start = waiting.find(b"\n", 0, _LINE) + 1
            self._omitted += start
            del waiting[:start]
        piece = bytes(waiting[:_PIECE])
        end = len(piece)
        is_final = len(waiting) == end and (last or (is_head and not self._room))
        if not is_final:
            end = _complete_lines(piece) or (end if end > _LINE else 0)
        del waiting[:end]
        text = redact.lines(piece[:end].decode(errors="replace").replace("\r\n", "\n"), self._hidden)
        try:
            self._put(text.encode(errors="replace"), is_head=is_head)
        except OSError as error:
            self.problem = error.strerror or "the log cannot be written"

    def _put(self, data: bytes, *, is_head: bool, most: int = 2 * TAIL) -> None:
        """Append to the beginning or to the end. An end longer than `most` bytes is cut to `TAIL` bytes. Raises `OSError`."""
        if is_head:
            self._head += self._write_at(self._head, data)
            return
        start = self._head + len(self._mark)
        if self._has_gap or self._tail + len(data) > most:
            previous = b"" if self._has_gap else os.pread(self._handle, TAIL, start + max(0, self._tail - TAIL))
            data = (previous + data)[-TAIL:]
            self._omitted += self._tail - len(previous)
            self._has_gap = False
            self._mark = f"\n[repro-env: {self._omitted:,} bytes omitted]\n".encode()
            self._tail = self._write_at(self._head, self._mark + data) - len(self._mark)
            os.ftruncate(self._handle, self._head + len(self._mark) + self._tail)
        else:
            self._tail += self._write_at(start + self._tail, data)

    def _write_at(self, offset: int, data: bytes) -> int:
        """Write all data at an offset of the file. Returns the number of bytes."""
        view = memoryview(data)
        while view:
            count = os.pwrite(self._handle, view, offset)
            view, offset = view[count:], offset + count
        return len(data)


def _complete_lines(data: bytes | bytearray) -> int:
    """The number of bytes in complete lines. A line ends with a line feed, or a carriage return that does not end the data."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1))) + 1
