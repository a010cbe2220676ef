"""Replace the caller's terminal with a separate one for the run, and forward only typed keys and printed output.

The command has no descriptor of the caller's terminal, so it can neither write to its input nor change its settings.
Streams that are not a terminal are not replaced.
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
from pathlib import Path

from repro_env.sandbox.console import Log

_READ = 1 << 16
_MAX_INPUT = 1 << 16
"""Bytes of input that are buffered until the command reads them."""
_STREAMS = (0, 1, 2)


class Terminal:
    """A pseudo-terminal that replaces the standard streams that are a terminal."""

    def __init__(self, streams: tuple[int, ...]) -> None:
        self.streams = streams
        self.log: Log | None = None
        self.main, self.side = os.openpty()  # `side` stays open here, so that reading `main` does not fail
        self.name = os.ttyname(self.side)
        self._output = next(stream for stream in (1, 2, 0) if stream in streams)
        self._before = termios.tcgetattr(streams[0])
        self._input = b""
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
        """Set the caller's terminal to raw mode, if this process is in its foreground."""
        if self._is_raw or not (self._has_input and in_foreground()):
            return
        if self.streams == _STREAMS:
            tty.setraw(0, termios.TCSANOW)
        else:  # other programs of a pipeline also print there, and Ctrl-C must end them too
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
        """Register the descriptors to wait for."""
        poll.register(self.main, select.POLLIN | (select.POLLOUT if self._input else 0))
        if self._has_input and len(self._input) < _MAX_INPUT and in_foreground():
            poll.register(0, select.POLLIN)

    def forward(self, ready: dict[int, int]) -> None:
        """Forward bytes, given the descriptors that `poll` found ready."""
        if ready.get(0, 0):
            try:
                typed = os.read(0, _READ)
            except OSError:
                typed = b""
            self._has_input = bool(typed)  # at the end of input the caller's terminal is gone, and SIGHUP follows
            if self._suspends(typed):
                os.killpg(0, signal.SIGTSTP)
            else:
                self._input += typed
        if self._input and ready.get(self.main, 0) & select.POLLOUT:
            with contextlib.suppress(OSError):
                self._input = self._input[os.write(self.main, self._input) :]
        if ready.get(self.main, 0) & select.POLLIN:
            self._print()

    def drain(self) -> None:
        """Print all remaining output after the end of the command."""
        while self._print():
            pass

    def close(self) -> None:
        self.give_back()
        os.close(self.main)
        os.close(self.side)

    def _print(self) -> bool:
        """Forward one piece of output. Returns False if there is none."""
        try:
            data = os.read(self.main, _READ)
        except OSError:
            return False
        if self.log is not None:
            self.log.add(data)
        with contextlib.suppress(OSError):
            write_all(self._output, data)
        return bool(data)

    def _suspends(self, typed: bytes) -> bool:
        """Whether Ctrl-Z was typed and must stop the whole run, because the kernel would not stop the command.

        The command leads its own session, and the kernel ignores SIGTSTP in its orphaned process group. A command that handles
        the signal itself, as shells do, gets the key instead.
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
        masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status, re.MULTILINE)]
        return leader == group and not any(mask >> (signal.SIGTSTP - 1) & 1 for mask in masks)


_SESSION = 0x5429
"""TIOCGSID (ioctl_tty(2)). `termios` has it from Python 3.11 on."""


def open_terminal() -> Terminal | None:
    """Open a `Terminal` if any standard stream is a terminal; None otherwise."""
    streams = tuple(stream for stream in _STREAMS if is_terminal(stream))
    return Terminal(streams) if streams else None


def is_terminal(stream: int) -> bool:
    try:
        return os.isatty(stream)
    except OSError:
        return False


def in_foreground() -> bool:
    """Whether this process may read stdin: in the background of a terminal, reading would stop the process."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def write_all(stream: int, data: bytes) -> None:
    """Write all data, even if the caller made the stream non-blocking. Raises `OSError`."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:  # noqa: PERF203
            select.select([], [stream], [])
