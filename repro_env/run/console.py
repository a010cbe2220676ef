"""What a command prints, kept in the run's folder: without secrets, and of much of it the beginning and the end.

All that the command prints passes through here on its way to the caller, so the log takes only a small share of the time: it
is searched for secrets in small pieces, and what comes faster than that is left out, as a line of the log says.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

from repro_env.model import redact

STDOUT, STDERR, BOTH = "stdout.log", "stderr.log", "console.log"
NAMES = (STDOUT, STDERR, BOTH)
"""In a run's folder. `console.log` is there instead of the others where stdout and stderr were one: a terminal, a file, a pipe."""
HEAD = TAIL = 2 << 20
"""Bytes that are kept of one log: of its beginning, and of its end."""
_PIECE = 1 << 18
"""Bytes that are searched at once."""
_LINE = 1 << 16
"""Bytes of a line whose end is waited for: a secret is found only where it is not cut."""
_PAUSE = 0.5
"""Seconds between two writes, and at least `_REST` times as long as the last one took."""
_REST = 20


class Log:
    """One file of the run's folder, which grows while the command runs: its beginning, a line about what is left out, its end."""

    def __init__(self, path: Path, hidden: Collection[str]) -> None:
        """`hidden`: values that are secret for sure. Raises `OSError`."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o644)
        self._hidden = hidden
        self._room = HEAD
        """Bytes of the beginning that are still to come."""
        self._first, self._last = bytearray(), bytearray()
        """Bytes that are not written yet, of the beginning and of what follows."""
        self._head = self._tail = 0
        """Bytes of the file: of its beginning, and of its end without the line before it."""
        self._omitted = 0
        self._mark = b""
        """The line about what is left out, once something is."""
        self._has_gap = False
        """Something was left out since the last write."""
        self._due = 0.0
        self.problem = ""
        """Why the log is not complete."""

    def add(self, data: bytes) -> None:
        """Take what the command printed. Raises nothing."""
        if self._room:
            self._first += data[: self._room]
            data = data[self._room :]
            self._room = max(0, HEAD - self._head - len(self._first))
            if not self._room:  # a line goes to one of the two, never to both
                end = len(self._first) if len(self._first) - (cut := _last_end(self._first)) > _LINE else cut
                data = bytes(self._first[end:]) + data
                del self._first[end:]
        self._last += data
        if len(self._last) > 2 * TAIL:
            self._has_gap = True
            self._omitted += len(self._last) - TAIL
            del self._last[:-TAIL]
        self.tick()

    def wait(self) -> float | None:
        """Seconds until `tick` has something to write; None while there is nothing."""
        return max(0.0, self._due - time.monotonic()) if self._first or self._last else None

    def tick(self) -> None:
        """Write a piece of what waits, if enough time has passed."""
        now = time.monotonic()
        if now >= self._due:
            self._write(last=False)
            self._due = time.monotonic() + max(_PAUSE, _REST * (time.monotonic() - now))

    def close(self) -> None:
        """Write the rest."""
        self._room = 0
        while self._first or self._last:
            self._write(last=True)
        with contextlib.suppress(OSError):
            self._put(b"", is_head=False, most=TAIL)
        os.close(self._handle)

    def _write(self, *, last: bool) -> None:
        """Write one piece. `last`: also what is no whole line."""
        is_head = bool(self._first)
        waiting = self._first if is_head else self._last
        if not is_head and self._has_gap:  # up to a whole line
            start = waiting.find(b"\n", 0, _LINE) + 1
            self._omitted += start
            del waiting[:start]
        piece = bytes(waiting[:_PIECE])
        end = len(piece)
        is_whole = len(waiting) == end and (last or (is_head and not self._room))
        if not is_whole:
            end = _last_end(piece) or (end if end > _LINE else 0)
        del waiting[:end]
        text = redact.lines(piece[:end].decode(errors="replace").replace("\r\n", "\n"), self._hidden)
        try:
            self._put(text.encode(errors="replace"), is_head=is_head)
        except OSError as error:
            self.problem = error.strerror or "it cannot be written"

    def _put(self, data: bytes, *, is_head: bool, most: int = 2 * TAIL) -> None:
        """Add to the beginning or the end. An end of over `most` bytes is shortened to TAIL. Raises `OSError`."""
        if is_head:
            self._head += self._at(self._head, data)
            return
        start = self._head + len(self._mark)
        if self._has_gap or self._tail + len(data) > most:
            kept = b"" if self._has_gap else os.pread(self._handle, TAIL, start + max(0, self._tail - TAIL))
            data = (kept + data)[-TAIL:]
            self._omitted += self._tail - len(kept)
            self._has_gap = False
            self._mark = f"\n[repro-env: {self._omitted:,} bytes are left out here]\n".encode()
            self._tail = self._at(self._head, self._mark + data) - len(self._mark)
            os.ftruncate(self._handle, self._head + len(self._mark) + self._tail)
        else:
            self._tail += self._at(start + self._tail, data)

    def _at(self, place: int, data: bytes) -> int:
        """Write at a place of the file. Returns the number of bytes."""
        view = memoryview(data)
        while view:
            count = os.pwrite(self._handle, view, place)
            view, place = view[count:], place + count
        return len(data)


def _last_end(data: bytes | bytearray) -> int:
    """Bytes up to the end of the last whole line: a line feed, or a carriage return that begins the line again."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(0, len(data) - 1))) + 1
