"""The file of a trace: one a process, lines that are only added. Standard library only, Python 3.8 and newer."""

from __future__ import annotations

import os

_SOON = 0.2
"""Seconds between writes: so much is lost where the process is killed. To write takes about as long as ten lines."""


class File:
    """Named for the process, the same in every run."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = ""
        self._text: list[str] = []
        self._rest = b""
        """What a full disk did not take."""
        self._written = 0.0
        self.size = 0

    @property
    def claimed(self) -> bool:
        return bool(self._path)

    def claim(self, rank: str, worker: tuple[object, ...]) -> None:
        """Raises `OSError`."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        name = "-".join(["rank" + rank, *map(str, worker)])
        for number in range(1, 10000):
            path = f"{self._folder}/{name}.jsonl" if number == 1 else f"{self._folder}/{name}.{number}.jsonl"
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                continue
            self._path = path
            return
        raise OSError("there are too many traces")

    def leave(self) -> None:
        """After a fork: the file, and what waits to be written to it, are the parent's."""
        self._path, self._rest, self._written, self.size = "", b"", 0.0, 0
        self._text.clear()

    def add(self, line: str) -> None:
        self._text.append(line)

    def write(self, now: float | None = None) -> None:
        """What was added; where `now` is given, only when it is time. Raises `OSError`; what was not written comes next time."""
        if not self._path or not (self._text or self._rest) or (now is not None and now - self._written < _SOON):
            return
        if now is not None:
            self._written = now
        self._rest += "".join(self._text).encode()
        self._text.clear()
        # Opened anew each time: a script may close all files, and open its own under the number of ours.
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            while self._rest:
                done = os.write(fd, self._rest)
                self._rest = self._rest[done:]
                self.size += done
        finally:
            os.close(fd)
