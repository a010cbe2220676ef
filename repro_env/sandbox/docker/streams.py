"""Connect the standard streams and signals of this process to a container.

If all three streams are a terminal, the container gets a terminal too, and ours is set to raw mode. Otherwise the engine
sends frames (Engine API, "Attach to a container"): one byte for the stream, three zeros, four bytes for the length.
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

from repro_env.sandbox.console import Log
from repro_env.sandbox.signals import SignalQueue, queue_signals
from repro_env.sandbox.terminal import in_foreground, is_terminal, write_all

FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_READ = 1 << 16
_MAX_INPUT = 1 << 20
"""Bytes of input that are buffered until the container reads them."""
_SHUT_WR = 1
"""shutdown(2): end the command's input, but keep reading its output."""
_PAUSE = 0.02
"""Seconds between two checks whether the command has started and can receive signals."""


def has_terminal() -> bool:
    """Whether stdin, stdout and stderr are all terminals."""
    return all(is_terminal(stream) for stream in (0, 1, 2))


class Stream(Protocol):
    """The socket to the engine."""

    def fileno(self) -> int: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...


class Attachment(msgspec.Struct):
    """The connection to a container while its command runs."""

    stream: Stream
    terminal: bool
    kill: Callable[[int], None]
    """Send a signal to the container."""
    resize: Callable[[int, int], None]
    """Set the size of the container's terminal: rows, columns."""
    started: Path
    """A file that exists once the command can receive signals."""
    logs: Mapping[int, Log] = {}
    """Stream -> the log that also receives its bytes."""

    def wait(self) -> None:
        """Forward input, output and signals until the container or the engine closes the connection. Raises `OSError`."""
        with contextlib.ExitStack() as stack:
            numbers = (*FORWARDED, signal.SIGWINCH)
            queue = stack.enter_context(
                queue_signals(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)
            )
            if self.terminal:
                stack.enter_context(_raw_terminal())
                self._copy_size()
            self._pump(queue)

    def _pump(self, queue: SignalQueue) -> None:
        self.stream.setblocking(False)
        frames = _Frames(self.terminal)
        closed: set[int] = set()
        pending: list[int] = []
        input_ = b""
        has_input, is_shut = _is_open(0), False
        while True:
            poll = select.poll()
            poll.register(self.stream, select.POLLIN | (select.POLLOUT if input_ else 0))
            poll.register(queue.handle, select.POLLIN)
            if has_input and len(input_) < _MAX_INPUT and (not is_terminal(0) or in_foreground()):
                poll.register(0, select.POLLIN)
            ready = dict(poll.poll(_PAUSE * 1000 if pending else 1000))
            pending += queue.take()
            for log in self.logs.values():
                log.tick()
            pending = self._send(pending)
            if 0 in ready:
                with contextlib.suppress(BlockingIOError):
                    chunk = os.read(0, _READ)
                    input_ += chunk
                    has_input = bool(chunk)
            if input_:
                try:
                    input_ = input_[self.stream.send(input_) :]
                except BlockingIOError:
                    pass
                except OSError:  # the container stopped reading its input
                    input_, has_input, is_shut = b"", False, True
            if not has_input and not input_ and not is_shut:
                is_shut = True
                with contextlib.suppress(OSError):
                    self.stream.shutdown(_SHUT_WR)
            if ready.get(self.stream.fileno(), 0) & ~select.POLLOUT:
                try:
                    data = self.stream.recv(_READ)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    data = b""
                if not data:
                    return
                for number, part in frames.feed(data):
                    if number in self.logs:
                        self.logs[number].add(part)
                    if number in closed:
                        continue
                    try:
                        write_all(number, part)
                    except BrokenPipeError:
                        closed.add(number)
                        pending.append(signal.SIGPIPE)  # as if the command itself had written to the closed pipe

    def _send(self, pending: list[int]) -> list[int]:
        """Send signals to the container. Returns all of them if the command has not started yet."""
        if not pending or not self.started.exists():
            return pending
        for number in pending:
            if number != signal.SIGWINCH:
                self.kill(number)
            elif self.terminal:
                self._copy_size()
        return []

    def _copy_size(self) -> None:
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(0)
            self.resize(rows, columns)


class _Frames:
    """Split the bytes of the engine into pieces for stdout and stderr."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._header = b""
        self._remaining = 0
        """Bytes of the current frame that have not arrived yet."""
        self._stream = 1

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        if self._terminal:
            yield 1, data
            return
        while data:
            if self._remaining:
                part, data = data[: self._remaining], data[self._remaining :]
                self._remaining -= len(part)
                yield self._stream, part
                continue
            missing = 8 - len(self._header)
            self._header, data = self._header + data[:missing], data[missing:]
            if len(self._header) == 8:
                kind, self._remaining = struct.unpack(">BxxxL", self._header)
                self._stream = 2 if kind == 2 else 1
                self._header = b""


def _is_open(stream: int) -> bool:
    try:
        os.fstat(stream)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
