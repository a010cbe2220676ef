"""Replace standard output and error that are not terminals with pipes, and forward what the command writes.

The command gets no descriptor of the caller's file, so it can neither read nor overwrite the existing contents.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import stat
import termios
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from repro_env.sandbox.console import BOTH, STDERR, STDOUT, Log
from repro_env.sandbox.terminal import Terminal, is_terminal, open_terminal, write_all

_READ = 1 << 20
_PIPE_SIZE = 1 << 20
"""Bytes. The system may not allow a pipe of this size, which makes commands that print a lot wait less often."""


class Redirection:
    """A pipe that replaces one or two streams, which are the same file, pipe or socket of the caller."""

    def __init__(self, streams: tuple[int, ...]) -> None:
        self.streams = streams
        self.log: Log | None = None
        self.main, self.side = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.main, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        self._is_open = True
        self._unsent = b""
        """Bytes that the caller's stream has not accepted yet."""
        self._target = _Target(streams[0])
        os.set_blocking(self.main, False)

    def watch(self, poll: select.poll) -> None:
        """Register the descriptors to wait for."""
        if self._unsent:
            poll.register(self._target.handle, select.POLLOUT)
        elif self._is_open:
            poll.register(self.main, select.POLLIN)

    def forward(self, ready: dict[int, int]) -> None:
        """Forward bytes, given the descriptors that `poll` found ready."""
        if self._unsent:
            if ready.get(self._target.handle, 0):
                self._send()
        elif self._is_open and ready.get(self.main, 0):
            self._copy()

    def drain(self) -> None:
        """Forward all remaining bytes after the end of the command."""
        while self._is_open and (self._unsent or self._copy()):
            if self._unsent:
                select.select([], [self._target.handle], [])
                self._send()

    def close(self) -> None:
        self._end()
        os.close(self.side)
        self._target.close()

    def _copy(self) -> bool:
        """Forward the output that has arrived. Returns False if nothing has, or at its end."""
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
        except OSError:  # the disk is full or the reader is gone: let the command's own writes fail
            self._unsent = b""
            self._end()

    def _end(self) -> None:
        if self._is_open:
            os.close(self.main)
            self._is_open = False


class _Target:
    """A stream of the caller. Writes do not block, and do not change flags of the file, which other processes may share."""

    def __init__(self, stream: int) -> None:
        self.handle = stream
        self._is_own = False
        kind = stat.S_IFMT(os.fstat(stream).st_mode)
        self._can_block = kind in (stat.S_IFIFO, stat.S_IFSOCK)
        if kind == stat.S_IFIFO:
            with contextlib.suppress(OSError):  # the pipe belongs to another user
                self.handle = os.open(f"/proc/self/fd/{stream}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._is_own = True

    def write(self, data: bytes) -> int:
        """Write as much as possible without waiting. Returns the number of bytes. Raises `OSError`."""
        if not self._can_block:
            write_all(self.handle, data)
            return len(data)
        try:
            if self._is_own:
                return os.write(self.handle, data)
            # PIPE_BUF bytes are sure to fit if the stream is writable at all.
            return os.write(self.handle, data[: select.PIPE_BUF]) if select.select([], [self.handle], [], 0)[1] else 0
        except BlockingIOError:
            return 0

    def close(self) -> None:
        if self._is_own:
            os.close(self.handle)


def streams() -> list[tuple[int, ...]]:
    """Standard output and error of the caller, grouped if they are the same file, pipe, socket or terminal."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for stream in (1, 2):
        try:
            facts = os.fstat(stream)
        except OSError:  # it is closed
            continue
        has_order = not stat.S_ISCHR(facts.st_mode) or is_terminal(stream)  # not for /dev/null
        groups.setdefault((facts.st_dev, facts.st_ino) if has_order else (stream,), []).append(stream)
    return [tuple(group) for group in groups.values()]


def open_logs(directory: Path, hidden: Collection[str]) -> dict[int, Log]:
    """Open the logs in the run's directory. Returns stream -> log; a group of streams shares a log. Raises `OSError`."""
    logs: dict[int, Log] = {}
    for group in streams():
        name = BOTH if len(group) > 1 else STDOUT if group == (1,) else STDERR
        log = Log(directory / name, hidden)
        logs |= dict.fromkeys(group, log)
    return logs


class Relays:
    """Replacements for the caller's standard streams while a command runs, and the logs of what it prints."""

    def __init__(self, directory: Path, hidden: Collection[str] | None, stack: contextlib.ExitStack) -> None:
        """Open all replacements and logs, until the end of `stack`. `directory` is the run's; `hidden` is as in `Runner`."""
        self.terminal = open_terminal()
        # The two streams share a pipe if they are the same file, so that their output keeps its order.
        self._relays: list[Redirection | Terminal] = [Redirection(group) for group in streams() if not is_terminal(group[0])]
        if self.terminal is not None:
            self._relays.append(self.terminal)
        logs = {} if hidden is None else open_logs(directory, hidden)
        self._logs = set(logs.values())
        for relay in self._relays:
            stack.callback(relay.close)
            relay.log = next((logs[stream] for stream in relay.streams if stream in logs), None)
        for log in self._logs:
            stack.callback(log.close)

    def own(self, uid: int) -> None:
        """Change the owner of the command's ends, and of the pipe that is standard input, so that a user can open them by name."""
        for relay in self._relays:
            os.fchown(relay.side, uid, uid)
        with contextlib.suppress(OSError):  # it is closed
            if str(Path("/proc/self/fd/0").readlink()).startswith("pipe:"):
                os.fchown(0, uid, uid)

    def replace_streams(self) -> None:
        """In the command's process, which leads a session if there is a terminal: replace the caller's streams."""
        if self.terminal is not None:
            fcntl.ioctl(self.terminal.side, termios.TIOCSCTTY, 0)
        for relay in self._relays:
            for stream in relay.streams:
                os.dup2(relay.side, stream)

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Use the caller's terminal while the block runs. Afterwards forward what the command has printed and restore it."""
        if self.terminal is not None:
            self.terminal.take_over()
        try:
            yield
        finally:
            for relay in self._relays:
                relay.drain()
            if self.terminal is not None:
                self.terminal.give_back()

    def wait(self, *handles: int) -> dict[int, int]:
        """Forward input and output until a descriptor of `handles` is readable or a log is due. Returns the result of poll(2)."""
        poll = select.poll()
        for handle in handles:
            poll.register(handle, select.POLLIN)
        for relay in self._relays:
            relay.watch(poll)
        pauses = [pause for log in self._logs if (pause := log.delay()) is not None]
        ready = dict(poll.poll(int(1000 * min(pauses)) + 1 if pauses else None))
        for relay in self._relays:
            relay.forward(ready)
        for log in self._logs:
            log.tick()
        return ready

    def forward_signal(self, number: int, send: Callable[[int], None]) -> None:
        """Forward a signal to the command with `send`. A change of the terminal's size is forwarded through the terminal."""
        if self.terminal is None:
            send(number)
        elif number == signal.SIGWINCH:
            self.terminal.resize()
        else:
            if number == signal.SIGCONT:
                self.terminal.take_over()
            send(number)
            if number == signal.SIGTSTP:
                self.terminal.give_back()
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
