"""A separate terminal for the run in place of the caller's. Only typed keys and printed output are passed on.

The command has no descriptor of the caller's terminal, so it can neither put keys into its input nor change its settings.
Streams that are not a terminal are not changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import termios
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from repro_env.run.console import Log

_READ = 1 << 16
_TYPED = 1 << 16
"""Bytes of input that wait for the command to take them."""
_STREAMS = (0, 1, 2)


class Relay(Protocol):
    """What stands for streams of the caller's, and passes their bytes on."""

    streams: tuple[int, ...]
    side: int
    """The command's end."""
    log: Log | None
    """Takes what the command prints."""

    def watch(self, poll: select.poll) -> None: ...
    def pass_on(self, ready: dict[int, int]) -> None: ...
    def drain(self) -> None: ...
    def close(self) -> None: ...


class Terminal:
    """A pseudo-terminal that replaces the standard streams which are a terminal."""

    def __init__(self, streams: tuple[int, ...]) -> None:
        self.streams = streams
        self.log: Log | None = None
        self.before: Callable[[], None] | None = None
        """Called once, before the first output of the command."""
        self.main, self.side = os.openpty()  # `side` stays open here, so that reading `main` does not fail
        self.name = os.ttyname(self.side)
        self._output = next(stream for stream in (1, 2, 0) if stream in streams)
        self._before = termios.tcgetattr(streams[0])
        self._typed = b""
        self._is_raw = False
        self._has_input = 0 in streams
        termios.tcsetattr(self.side, termios.TCSANOW, self._before)
        self.resize()
        os.set_blocking(self.main, False)

    def resize(self) -> None:
        """Copy the size of the caller's terminal."""
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(self.streams[0], termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.main, termios.TIOCSWINSZ, size)

    def take_over(self) -> None:
        """Make the caller's terminal raw, if this process is in its foreground."""
        if self._is_raw or not (self._has_input and in_foreground()):
            return
        if self.streams == _STREAMS:
            tty.setraw(0, termios.TCSANOW)
        else:  # other programs of a pipeline print there too, and end with the same Ctrl-C
            settings = termios.tcgetattr(0)
            settings[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
            termios.tcsetattr(0, termios.TCSANOW, settings)
        self._is_raw = True

    def give_back(self) -> None:
        """Restore the settings of the caller's terminal."""
        if self._is_raw:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            self._is_raw = False

    def watch(self, poll: select.poll) -> None:
        """Register the descriptors whose bytes can be passed on."""
        poll.register(self.main, select.POLLIN | (select.POLLOUT if self._typed else 0))
        if self._has_input and len(self._typed) < _TYPED and in_foreground():
            poll.register(0, select.POLLIN)

    def pass_on(self, ready: dict[int, int]) -> None:
        """Move bytes, by what `poll` found ready."""
        if ready.get(0, 0):
            try:
                typed = os.read(0, _READ)
            except OSError:
                typed = b""
            self._has_input = bool(typed)  # without input the caller's terminal is gone, and SIGHUP follows
            if self._suspends(typed):
                os.killpg(0, signal.SIGTSTP)
            else:
                self._typed += typed
        if self._typed and ready.get(self.main, 0) & select.POLLOUT:
            with contextlib.suppress(OSError):
                self._typed = self._typed[os.write(self.main, self._typed) :]
        if ready.get(self.main, 0) & select.POLLIN:
            self._print()

    def drain(self) -> None:
        """Print what is left when the command is over."""
        while self._print():
            pass

    def close(self) -> None:
        self.give_back()
        os.close(self.main)
        os.close(self.side)

    def _print(self) -> bool:
        """Pass one piece of output on. False when there is none."""
        try:
            data = os.read(self.main, _READ)
        except OSError:
            return False
        if self.before is not None:
            self.before()
            self.before = None
        if self.log is not None:
            self.log.add(data)
        with contextlib.suppress(OSError):
            write_all(self._output, data)
        return bool(data)

    def _suspends(self, typed: bytes) -> bool:
        """Whether Ctrl-Z was typed, and the command would not notice.

        The kernel does not stop the first process of a session, whose parent is in another one, so that a stopped run could
        never be continued by a shell inside. A command that handles the signal itself, as shells do, gets the key.
        """
        settings = termios.tcgetattr(self.main)
        if typed != settings[6][termios.VSUSP] or not settings[3] & termios.ISIG:
            return False
        try:
            leader, group = (
                struct.unpack("i", fcntl.ioctl(self.main, what, bytes(4)))[0] for what in (_SESSION, termios.TIOCGPGRP)
            )
            status = Path(f"/proc/{leader}/status").read_text()
        except OSError:
            return False
        own = [int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status, re.MULTILINE)]
        return leader == group and not any(mask >> (signal.SIGTSTP - 1) & 1 for mask in own)


_SESSION = 0x5429
"""TIOCGSID (ioctl_tty(2)), which `termios` does not name before Python 3.11."""


def open_terminal() -> Terminal | None:
    """A `Terminal` if any standard stream is a terminal, else None."""
    streams = tuple(stream for stream in _STREAMS if is_terminal(stream))
    return Terminal(streams) if streams else None


def is_terminal(stream: int) -> bool:
    try:
        return os.isatty(stream)
    except OSError:
        return False


def in_foreground() -> bool:
    """Whether what is typed on stdin is for this process: in the background of a terminal, reading it would stop us."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def write_all(stream: int, data: bytes) -> None:
    """Write everything, even if the caller made the stream non-blocking. Raises `OSError`."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:  # noqa: PERF203
            select.select([], [stream], [])
