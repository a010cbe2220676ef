"""The standard streams and signals of this process, joined to those of a container.

With a terminal on all three streams the container gets one too, and ours is set to pass every key on. Else the engine
sends frames (Engine API, "Attach to a container"): a byte for the stream, three zeros, four for the length.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from repro_env.run.console import Log
from repro_env.run.signals import Heard, heard
from repro_env.run.terminal import in_foreground, is_terminal, write_all

PASSED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_READ = 1 << 16
_HELD = 1 << 20
"""Bytes of input that wait for the container to take them."""
_NO_MORE = 1
"""shutdown(2), SHUT_WR: the command's input ends, its output goes on."""
_PAUSE = 0.02
"""Seconds between two looks whether the command is there to get a signal."""


def has_terminal() -> bool:
    """Whether stdin, stdout and stderr all are a terminal."""
    return all(is_terminal(stream) for stream in (0, 1, 2))


class Stream(Protocol):
    """The engine's end: a socket."""

    def fileno(self) -> int: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...


class Attached(msgspec.Struct):
    """One container, while its command runs."""

    stream: Stream
    terminal: bool
    kill: Callable[[int], None]
    """Send a signal to the container."""
    resize: Callable[[int, int], None]
    """Rows and columns."""
    started: Path
    """A file that is there once the command can be sent signals."""
    logs: Mapping[int, Log] = {}
    """Stream -> what takes its bytes too."""
    before: Callable[[], None] | None = None
    """Called once, before the first output of the command."""

    def wait(self) -> None:
        """Pass everything on until the container closes its end, or the engine does. Raises `OSError`."""
        with contextlib.ExitStack() as stack:
            numbers = (*PASSED, signal.SIGWINCH)
            came = stack.enter_context(heard(one for one in numbers if signal.getsignal(one) is not signal.SIG_IGN))
            if self.terminal:
                stack.enter_context(_raw())
                self._size()
            self._pump(came)

    def _pump(self, came: Heard) -> None:
        self.stream.setblocking(False)
        frames = _Frames(self.terminal)
        closed: set[int] = set()
        pending: list[int] = []
        typed = b""
        reading, ended = _readable(0), False
        while True:
            poll = select.poll()
            poll.register(self.stream, select.POLLIN | (select.POLLOUT if typed else 0))
            poll.register(came.handle, select.POLLIN)
            if reading and len(typed) < _HELD and (not is_terminal(0) or in_foreground()):
                poll.register(0, select.POLLIN)
            happened = dict(poll.poll(_PAUSE * 1000 if pending else 1000))
            pending += came.take()
            for log in self.logs.values():
                log.tick()
            pending = self._send(pending)
            if 0 in happened:
                with contextlib.suppress(BlockingIOError):
                    chunk = os.read(0, _READ)
                    typed += chunk
                    reading = bool(chunk)
            if typed:
                try:
                    typed = typed[self.stream.send(typed) :]
                except BlockingIOError:
                    pass
                except OSError:  # nobody reads it any more
                    typed, reading, ended = b"", False, True
            if not reading and not typed and not ended:
                ended = True
                with contextlib.suppress(OSError):
                    self.stream.shutdown(_NO_MORE)
            if self.stream.fileno() in happened and happened[self.stream.fileno()] & ~select.POLLOUT:
                try:
                    data = self.stream.recv(_READ)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    data = b""
                if not data:
                    return
                if self.before is not None:
                    self.before()
                    self.before = None
                for number, part in frames.feed(data):
                    if number in self.logs:
                        self.logs[number].add(part)
                    if number in closed:
                        continue
                    try:
                        write_all(number, part)
                    except BrokenPipeError:
                        closed.add(number)
                        pending.append(signal.SIGPIPE)  # as if the command itself wrote there

    def _send(self, pending: list[int]) -> list[int]:
        """Pass signals on. Returns those that nobody is there for yet."""
        if not pending or not self.started.exists():
            return pending
        for number in pending:
            if number != signal.SIGWINCH:
                self.kill(number)
            elif self.terminal:
                self._size()
        return []

    def _size(self) -> None:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(0)
            self.resize(rows, columns)


class _Frames:
    """The bytes of the stream, by where they go."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._head = b""
        self._left = 0
        self._to = 1

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        if self._terminal:
            yield 1, data
            return
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                yield self._to, part
                continue
            take = 8 - len(self._head)
            self._head, data = self._head + data[:take], data[take:]
            if len(self._head) == 8:
                kind, self._left = struct.unpack(">BxxxL", self._head)
                self._to = 2 if kind == 2 else 1
                self._head = b""


def _readable(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
