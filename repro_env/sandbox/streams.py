"""Stand between the standard streams of the caller and those of a command.

The command gets pipes or a separate terminal, and no descriptor of the caller's files and terminal. So it can neither read nor
overwrite what is in them, nor change the terminal's settings. Threads copy what is typed and printed, and write the logs.

A repeated run gets streams like those of the recorded run, with an empty input, wherever the caller's own lead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import struct
import termios
import threading
import time
import tty
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeVar

from repro_env.schema import redact
from repro_env.schema.run import StandardStreams, StreamKind
from repro_env.schema.rundirectory import CONSOLE, STDERR, STDOUT

HEAD = TAIL = 2 << 20
"""Bytes that a log keeps of the beginning and of the end, at least."""
_READ = 1 << 16
_PIPE_SIZE = 1 << 20
"""Bytes. The system may not allow a pipe of this size, which makes commands that print a lot wait less often."""
_PIECE = 1 << 18
"""Bytes that are searched for secrets at once."""
_LINE = 1 << 16
"""Bytes of a line that are buffered until its end arrives, because a secret is not found if it is split."""
_PAUSE = 0.5
"""Seconds for which output is buffered, because a secret of several lines is not found if it is split."""
_INPUT = 1 << 12
"""Bytes of input that are read at once."""
TYPED = "input: typed at the terminal"
"""A note for the record."""
_END_OF_INPUT = b"\x04"
"""Ctrl-D."""
_Ends = TypeVar("_Ends", bound=tuple[int, ...])


class Log:
    """A log in the run's directory, without secrets. It grows while the command runs, and keeps the beginning and the end."""

    def __init__(self, path: Path, hidden: Collection[str]) -> None:
        """Create the file. `hidden` are known secret values. Raises `OSError`."""
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._hidden = hidden
        self._waiting = bytearray()
        self._omitted = 0
        """Bytes that are missing between the beginning and the end."""
        self._has_gap = False
        """Whether the waiting bytes do not follow those in the file."""
        self._size, self._head, self._start = 0, 0, HEAD
        """The size of the file, where its beginning ends (0 as long as nothing is missing), and where its end starts."""
        self._due = 0.0
        """When the waiting bytes are written (`time.monotonic`)."""

    def add(self, data: bytes) -> None:
        """Add output of the command."""
        if not self._waiting:
            self._due = time.monotonic() + _PAUSE
        self._waiting += data
        if time.monotonic() >= self._due or (len(self._waiting) > _PIECE and self._size < HEAD):
            self.write()
        elif len(self._waiting) > 2 * TAIL:  # searching all of it for secrets would slow down the command
            self._omitted += len(self._waiting) - TAIL
            del self._waiting[:-TAIL]
            self._has_gap = True

    @property
    def delay(self) -> float | None:
        """Seconds after which `write` should be called; None if nothing is waiting."""
        return max(0.0, self._due - time.monotonic()) if self._waiting else None

    def write(self, *, is_last: bool = False) -> None:
        """Write the waiting output without an incomplete line, unless it is the last one or very long."""
        end = len(self._waiting)
        if not is_last:
            # A carriage return that ends the data may be followed by a line feed.
            last = max(self._waiting.rfind(b"\n"), self._waiting.rfind(b"\r", 0, max(0, end - 1))) + 1
            end = last or (end if end > _LINE else 0)
        text = redact.lines(self._waiting[:end].decode(errors="replace").replace("\r\n", "\n"), self._hidden)
        del self._waiting[:end]
        self._due = time.monotonic() + _PAUSE
        data = text.encode(errors="replace")
        with contextlib.suppress(OSError):  # the disk is full
            _write(self._handle, data)
            self._size = os.lseek(self._handle, 0, os.SEEK_CUR)
            if self._has_gap or self._size > self._start + 2 * TAIL:
                self._shorten(min(TAIL, len(data)) if self._has_gap else TAIL)
                self._has_gap = False

    def close(self) -> None:
        self.write(is_last=True)
        os.close(self._handle)

    def _shorten(self, length: int) -> None:
        """Remove what is between the beginning and an end of this length. Both consist of complete lines."""
        tail = os.pread(self._handle, length, self._size - length)
        tail = tail[tail.find(b"\n", 0, _LINE) + 1 :]
        if not self._head:
            self._start = self._head = HEAD - _LINE + os.pread(self._handle, _LINE, HEAD - _LINE).rfind(b"\n") + 1
        self._omitted += self._size - len(tail) - self._start
        os.ftruncate(self._handle, self._head)
        os.lseek(self._handle, self._head, os.SEEK_SET)
        _write(self._handle, f"\n[repro-env: {self._omitted:,} bytes omitted]\n".encode())
        self._start = os.lseek(self._handle, 0, os.SEEK_CUR)
        _write(self._handle, tail)
        self._size = self._start + len(tail)


class Streams:
    """Replacements for the caller's standard streams while a command runs."""

    def __init__(
        self,
        directory: Path,
        hidden: Collection[str] | None,
        stack: contextlib.ExitStack,
        recorded: StandardStreams | None = None,
        *,
        replace_stdin: bool = False,
    ) -> None:
        """Open all replacements and logs, until the end of `stack`. `directory` is the run's; `hidden` is as in `Runner`.

        `recorded`: the streams of the run that is repeated; None for streams like those of the caller, of which standard input that
        is not a terminal is replaced only with `replace_stdin`: the copying reads more than the command.
        """
        self._stack = stack
        self._recorded = recorded
        self._open: set[int] = set()
        self._outputs: list[tuple[int, int, Log | None]] = []
        """The descriptors from which output is copied and those to which it is copied, with their logs."""
        self._input = -1
        """The descriptor to which input is copied."""
        self.ends = {0: 0, 1: 1, 2: 2}
        """Stream -> the command's end of its replacement, or the caller's own."""
        self.terminal = ""
        """The path of the command's terminal, if it has one."""
        self.controlling: int | None = None
        """A stream that is the caller's terminal, and for the command its controlling terminal; None without a terminal."""
        self._tty = self._slave = -1
        """The two ends of the command's terminal."""
        self.has_input = False
        """Whether something was typed at the terminal."""
        facts = recorded or of_caller()
        kinds = (facts.stdin, facts.stdout, facts.stderr)
        terminals = [stream for stream, kind in enumerate(kinds) if kind == "terminal"]
        groups: list[tuple[int, ...]] = [(1, 2)] if facts.joined else [(1,), (2,)]
        groups = [group for group in groups if group[0] not in terminals]
        if terminals:
            self._open_terminal(terminals)
            groups.append(tuple(stream for stream in terminals if stream) or (0,))
        for group in groups:
            name = CONSOLE if len(group) > 1 else STDOUT if group == (1,) else STDERR
            log = None if hidden is None or group == (0,) else Log(directory / name, hidden)
            if log is not None:
                stack.callback(log.close)
            source = self._tty if group[0] in terminals else self._open_pipe(group)
            target = group[0] or (0 if recorded is None else 2)  # what a terminal echoes is not written to another input
            self._outputs.append((source, target, log))
        if 0 not in terminals and recorded is not None:
            self.ends[0] = self._open_empty_input("pipe" if replace_stdin else facts.stdin)
        elif 0 not in terminals and replace_stdin:
            self.ends[0], self._input = self._pipe()
        self._is_over = -1
        """A descriptor that becomes readable at the end of the command."""

    def _pipe(self) -> tuple[int, int]:
        return self._closed_later(os.pipe2(os.O_CLOEXEC))

    def _closed_later(self, ends: _Ends) -> _Ends:
        for end in ends:
            self._open.add(end)
            self._stack.callback(self._close, end)
        return ends

    def _close(self, handle: int) -> None:
        if handle in self._open:
            self._open.remove(handle)
            os.close(handle)

    def _open_pipe(self, group: tuple[int, ...]) -> int:
        source, end = self._pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(source, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        self.ends |= dict.fromkeys(group, end)
        return source

    def _open_empty_input(self, kind: StreamKind) -> int:
        if kind == "null":
            end = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._stack.callback(os.close, end)
            return end
        if kind == "file":
            return self._closed_later((os.memfd_create("stdin"),))[0]
        end, writer = self._pipe()
        self._close(writer)
        return end

    def _open_terminal(self, streams: list[int]) -> None:
        # `_slave` stays open here, so that reading the other end does not fail.
        self._tty, self._slave = self._closed_later(os.openpty())
        self.terminal = os.ttyname(self._slave)
        self.ends |= dict.fromkeys(streams, self._slave)
        self.controlling = streams[0]
        if self._recorded is not None:
            size = struct.pack("HHHH", self._recorded.rows, self._recorded.columns, 0, 0)
            fcntl.ioctl(self._tty, termios.TIOCSWINSZ, size)
            return
        self._settings = termios.tcgetattr(streams[0])
        self._is_complete = len(streams) == 3
        termios.tcsetattr(self._slave, termios.TCSANOW, self._settings)
        self.resize()
        if 0 in streams:
            self._input = self._tty

    def resize(self) -> None:
        """Copy the size of the caller's terminal to that of the command. A recorded size does not change."""
        if self.controlling is not None and self._recorded is None:
            with contextlib.suppress(OSError):
                size = fcntl.ioctl(self.controlling, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self._tty, termios.TIOCSWINSZ, size)

    @property
    def deviations(self) -> tuple[str, ...]:
        """What the record of a run that has ended says about its streams."""
        return (TYPED,) if self.has_input else ()

    def own(self, uid: int) -> None:
        """Change the owner of the command's ends, and of a pipe that is standard input, so that a user can open them by name."""
        for end in self.ends.values():
            if end in self._open or stat.S_ISFIFO(os.fstat(end).st_mode):
                os.fchown(end, uid, uid)

    def replace(self) -> None:
        """In the command's process: become the leader of a session with the command's terminal, and replace the streams."""
        os.setsid()
        if self.controlling is not None:
            fcntl.ioctl(self.ends[self.controlling], termios.TIOCSCTTY, 0)
        for stream, end in self.ends.items():
            os.dup2(end, stream)

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Copy input and output while the block runs, and afterwards what the command has printed until then."""
        is_raw = self._input == self._tty != -1 and _in_foreground()
        if is_raw:
            self._set_raw()
        self._is_over, over = os.pipe2(os.O_CLOEXEC)
        copying = [threading.Thread(target=self._copy_output, args=output, daemon=True) for output in self._outputs]
        if self._input != -1:
            copying.append(threading.Thread(target=self._copy_input, daemon=True))
        elif self._recorded is not None and self._recorded.typed and self._recorded.stdin == "terminal":
            copying.append(threading.Thread(target=self._end_input, daemon=True))
        for thread in copying:
            thread.start()
        try:
            yield
        finally:
            os.close(over)
            for thread in copying:
                thread.join()
            os.close(self._is_over)
            if is_raw:
                with contextlib.suppress(OSError, termios.error):
                    termios.tcsetattr(0, termios.TCSADRAIN, self._settings)

    def _set_raw(self) -> None:
        if self._is_complete:
            tty.setraw(0, termios.TCSANOW)
        else:  # other programs of a pipeline also print there, and Ctrl-C must end them too
            settings = termios.tcgetattr(0)
            settings[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
            termios.tcsetattr(0, termios.TCSANOW, settings)

    def _copy_output(self, source: int, target: int, log: Log | None) -> None:
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(self._is_over, select.POLLIN)
        while True:
            delay = None if log is None else log.delay
            ready = dict(poll.poll(None if delay is None else delay * 1000 + 1))
            if source in ready:
                data = os.read(source, _READ)
                if log is not None:
                    log.add(data)
                try:
                    _write(target, data)
                except OSError:  # the disk is full or the reader is gone: let the command's own writes fail
                    if source != self._tty:
                        self._close(source)
                        return
            elif ready:  # nothing was left to read
                return
            elif log is not None:
                log.write()

    def _copy_input(self) -> None:
        os.set_blocking(self._input, False)
        waiting = b""
        while True:
            poll = select.poll()
            poll.register(self._is_over, select.POLLIN)
            poll.register(self._input if waiting else 0, select.POLLOUT if waiting else select.POLLIN)
            if self._is_over in dict(poll.poll()):
                return
            try:
                if waiting:
                    waiting = waiting[os.write(self._input, waiting) :]
                elif self._input == self._tty and not _in_foreground():
                    time.sleep(0.1)  # in the background of a terminal, reading would stop the process
                else:
                    waiting = os.read(0, _INPUT)
                    if not waiting:
                        break
                    self.has_input = self._input == self._tty
            except BlockingIOError:
                pass
            except OSError:  # the command closed its input, or the caller's terminal is gone
                break
        if self._input != self._tty:
            self._close(self._input)

    def _end_input(self) -> None:
        """Answer each read of the terminal with the end of the input, as long as the command runs, because nothing is typed here."""
        over, slave = select.poll(), select.poll()
        over.register(self._is_over, select.POLLIN)
        slave.register(self._slave, select.POLLIN)
        while not over.poll(100):
            if not slave.poll(0):
                os.write(self._tty, _END_OF_INPUT)


def of_caller(*, prints: bool = True) -> StandardStreams:
    """How the streams of this process are connected. Without `prints`, stdout and stderr of the command lead to /dev/null."""
    stdin, stdout, stderr = (_kind(stream) if prints or not stream else "null" for stream in (0, 1, 2))
    output, error = (os.fstat(stream) for stream in (1, 2))
    is_same = (output.st_dev, output.st_ino) == (error.st_dev, error.st_ino) and not stat.S_ISCHR(output.st_mode)  # /dev/null
    size = (0, 0)
    for stream, kind in reversed([*enumerate((stdin, stdout, stderr))]):
        if kind == "terminal":
            with contextlib.suppress(OSError):
                size = struct.unpack("HHHH", fcntl.ioctl(stream, termios.TIOCGWINSZ, bytes(8)))[:2]
    return StandardStreams(
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        joined=prints and is_same,
        has_input=_has_input(stdin),
        rows=size[0],
        columns=size[1],
    )


def _has_input(kind: StreamKind) -> bool:
    if kind == "file":
        return os.fstat(0).st_size > os.lseek(0, 0, os.SEEK_CUR)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return kind == "pipe" and poll.poll(0) != [(0, select.POLLHUP)]


def _kind(stream: int) -> StreamKind:
    if os.isatty(stream):
        return "terminal"
    mode = os.fstat(stream).st_mode
    return "file" if stat.S_ISREG(mode) else "null" if stat.S_ISCHR(mode) else "pipe"


def _in_foreground() -> bool:
    """Whether this process may read from the terminal that is standard input."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _write(stream: int, data: bytes) -> None:
    """Write all data, even if the caller made the stream non-blocking. Raises `OSError`."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(stream, view) :]
        except BlockingIOError:  # noqa: PERF203
            poll = select.poll()
            poll.register(stream, select.POLLOUT)
            poll.poll()
