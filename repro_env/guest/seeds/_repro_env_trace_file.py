"""The file of a trace, to which a process appends lines. Standard library only, Python 3.8 and later."""

from __future__ import annotations

import os

_INTERVAL = 0.2
"""Seconds between writes. The lines of this time are lost if the process is killed. A write takes as long as ten lines."""


class File:
    """The file. It is named after the process, with the same name in every run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._path = ""
        self._text: list[str] = []
        self._unwritten = b""
        """Bytes that could not be written because the disk was full."""
        self._written = 0.0

    @property
    def is_created(self) -> bool:
        return bool(self._path)

    def create(self, rank: str, worker: tuple[object, ...]) -> None:
        """Create the file. Raises `OSError`."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        name = "-".join(["rank" + rank, *map(str, worker)])
        for number in range(1, 10000):
            path = f"{self._directory}/{name}.jsonl" if number == 1 else f"{self._directory}/{name}.{number}.jsonl"
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                continue
            self._path = path
            return
        raise OSError("10,000 trace files with this name already exist")

    def reset(self) -> None:
        """Forget the file and the unwritten lines: in a forked child, they belong to the parent."""
        self._path, self._unwritten, self._written = "", b"", 0.0
        self._text.clear()

    def add(self, line: str) -> None:
        self._text.append(line)

    def write(self, now: float | None = None) -> None:
        """Write the added lines; if `now` is given, only if the interval is over. Raises `OSError` and keeps the unwritten bytes."""
        if not self._path or not (self._text or self._unwritten) or (now is not None and now - self._written < _INTERVAL):
            return
        if now is not None:
            self._written = now
        self._unwritten += "".join(self._text).encode()
        self._text.clear()
        # Opened for each write: a script may close all file descriptors, and open its own file with the same number.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            while self._unwritten:
                count = os.write(fd, self._unwritten)
                self._unwritten = self._unwritten[count:]
        finally:
            os.close(fd)
