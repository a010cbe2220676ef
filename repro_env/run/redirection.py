"""Standard output and error that are no terminal: the command gets a pipe, and what it writes is passed on.

So the command holds no descriptor of the caller's file, and can neither read nor rewrite what was there before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
from collections.abc import Collection
from pathlib import Path

from repro_env.run.console import BOTH, STDERR, STDOUT, Log
from repro_env.run.terminal import is_terminal, write_all

_READ = 1 << 20
_HELD = 1 << 20
"""Bytes that the pipe holds where the system allows it: who prints much waits less often."""


class Redirection:
    """A pipe that stands for the streams which are one file, pipe or socket of the caller's."""

    def __init__(self, streams: tuple[int, ...]) -> None:
        self.streams = streams
        self.log: Log | None = None
        self.main, self.side = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.main, fcntl.F_SETPIPE_SZ, _HELD)
        self._is_open = True
        self._unsent = b""
        """Bytes that the caller's end does not take yet."""
        self._target = _Target(streams[0])
        os.set_blocking(self.main, False)

    def watch(self, poll: select.poll) -> None:
        """Register what can be passed on."""
        if self._unsent:
            poll.register(self._target.handle, select.POLLOUT)
        elif self._is_open:
            poll.register(self.main, select.POLLIN)

    def pass_on(self, ready: dict[int, int]) -> None:
        """Move bytes, by what `poll` found ready."""
        if self._unsent:
            if ready.get(self._target.handle, 0):
                self._send()
        elif self._is_open and ready.get(self.main, 0):
            self._copy()

    def drain(self) -> None:
        """Write what is left when the command is over."""
        while self._is_open and (self._unsent or self._copy()):
            if self._unsent:
                select.select([], [self._target.handle], [])
                self._send()

    def close(self) -> None:
        self._end()
        os.close(self.side)
        self._target.close()

    def _copy(self) -> bool:
        """Pass one piece on. False when there is none."""
        try:
            data = os.read(self.main, _READ)
        except BlockingIOError:
            return False
        if self.log is not None:
            self.log.add(data)
        self._unsent = data
        self._send()
        return bool(data)

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[self._target.write(self._unsent) :]
        except OSError:  # the disk is full, or nobody reads: the command's own writing has to fail, as it would without us
            self._unsent = b""
            self._end()

    def _end(self) -> None:
        if self._is_open:
            os.close(self.main)
            self._is_open = False


class _Target:
    """A stream of the caller's, written to without waiting, and without changing it for others who have it too."""

    def __init__(self, stream: int) -> None:
        self.handle = stream
        self._is_own = False
        kind = stat.S_IFMT(os.fstat(stream).st_mode)
        self._waits = kind in (stat.S_IFIFO, stat.S_IFSOCK)
        if kind == stat.S_IFIFO:
            with contextlib.suppress(OSError):  # a pipe of another user's
                self.handle = os.open(f"/proc/self/fd/{stream}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._is_own = True

    def write(self, data: bytes) -> int:
        """Write what is taken now. Returns the number of bytes. Raises `OSError`."""
        if not self._waits:
            write_all(self.handle, data)
            return len(data)
        try:
            if self._is_own:
                return os.write(self.handle, data)
            # What is sure to fit when poll(2) says that something does.
            return os.write(self.handle, data[: select.PIPE_BUF]) if select.select([], [self.handle], [], 0)[1] else 0
        except BlockingIOError:
            return 0

    def close(self) -> None:
        if self._is_own:
            os.close(self.handle)


def streams() -> list[tuple[int, ...]]:
    """Standard output and error of the caller: as one where they are one file, pipe, socket or terminal."""
    found: dict[tuple[int, ...], list[int]] = {}
    for stream in (1, 2):
        try:
            facts = os.fstat(stream)
        except OSError:  # it is closed
            continue
        has_order = not stat.S_ISCHR(facts.st_mode) or is_terminal(stream)  # /dev/null has none
        found.setdefault((facts.st_dev, facts.st_ino) if has_order else (stream,), []).append(stream)
    return [tuple(both) for both in found.values()]


def open_redirections() -> list[Redirection]:
    """A relay for each that is not a terminal. What is written to one file by both streams keeps its order."""
    return [Redirection(both) for both in streams() if not is_terminal(both[0])]


def open_logs(folder: Path, hidden: Collection[str]) -> dict[int, Log]:
    """Stream -> its log in the run's folder; the same one for streams that are one. Raises `OSError`."""
    found: dict[int, Log] = {}
    for both in streams():
        name = BOTH if len(both) > 1 else STDOUT if both == (1,) else STDERR
        log = Log(folder / name, hidden)
        found |= dict.fromkeys(both, log)
    return found


def own_pipe(uid: int) -> None:
    """Let a user open the caller's pipe that is standard input by its name (`/dev/stdin`): it is nowhere else."""
    with contextlib.suppress(OSError):  # it is closed
        if str(Path("/proc/self/fd/0").readlink()).startswith("pipe:"):
            os.fchown(0, uid, uid)
