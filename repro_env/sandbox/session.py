"""Run a command behind `guest/init.py`: messages from the processes of a run, and signals to them, through one socket.

The processes write lines of JSON. Until `init.py` starts, only code of this package has the socket; what comes later is not
trusted, because the interpreter of the image runs `init.py`. This process writes one byte for each signal. If it dies, the
socket is closed, and `init.py` ends the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType

import msgspec

from repro_env.sandbox import command
from repro_env.sandbox.streams import Streams
from repro_env.schema import errors, redact
from repro_env.schema.errors import ReproEnvError, SandboxError
from repro_env.schema.run import Limits

FORWARDED = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
"""Signals that are passed on to the command."""
_READ = 1 << 12
_MAX_LINE = 1 << 16
_MAX_DEVIATIONS = 8
"""How many deviations of `init.py` are recorded at most."""
Connection = socket.socket
_Handler = Callable[[int, FrameType | None], object] | int | None


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The kernel refused to mount the root; another way may work."""

    why: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A `ReproEnvError` was raised before the command started."""

    kind: str
    """The name of its class."""
    what: str
    where: str
    hint: str


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """The first process of the run was started."""

    pid: int
    """As this process sees it."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The command is about to start."""

    deviations: tuple[str, ...] = ()
    """What deviates from a usual run, for the record."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The command and all other processes of the run have ended."""

    status: int
    """As returned by waitpid(2)."""
    starved: bool = False
    """Whether memory ran out, if `init.py` can see that."""
    refused: command.Refused | None = None
    """Why the command could not be executed."""


Message = Refused | Failed | Forked | Started | Ended
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Result(msgspec.Struct):
    """What the processes of a run reported."""

    refused: Refused | None = None
    methods: tuple[str, ...] = ()
    """How the runner started the command, for the record."""
    deviations: tuple[str, ...] = ()
    """What deviates from a usual run."""
    ended: Ended | None = None
    interrupted: int = 0
    """The first signal that was passed on to the command, or 0."""
    timed_out: bool = False

    @property
    def code(self) -> int:
        """The exit code of the command, or minus its signal. If the first process of the run was killed, so was the command."""
        with contextlib.suppress(ValueError):
            if self.ended is not None:
                return os.waitstatus_to_exitcode(self.ended.status)
        return -signal.SIGKILL


def connect() -> tuple[Connection, Connection]:
    """Make a connection. Returns the end of this process, and that of the processes of the run."""
    return socket.socketpair()


def send(connection: Connection, message: Message) -> None:
    connection.sendall(msgspec.json.encode(message) + b"\n")


def send_error(connection: Connection, error: BaseException) -> None:
    """Report an exception to the supervisor."""
    if not isinstance(error, ReproEnvError):
        error = SandboxError(
            f"the run could not be set up: {type(error).__name__}: {error}",
            hint="run `repro-env doctor` to see what this machine lacks",
        )
    send(connection, Failed(type(error).__name__, error.what[:1500], error.where[:500], error.hint[:500]))


class Clock:
    """The time limit of a command: SIGTERM at its end, then SIGKILL."""

    def __init__(self, limits: Limits) -> None:
        self._due = [(limits.seconds, signal.SIGTERM), (limits.seconds + limits.grace, signal.SIGKILL)] if limits.seconds else []
        self._start = 0.0
        self.is_over = False
        """Whether the limit was reached."""

    def start(self) -> None:
        """Called when the command starts. The clock stands still before."""
        self._start = time.monotonic()

    @property
    def milliseconds(self) -> float | None:
        """The time until the next signal, for poll(2); None if there is none."""
        return max(0.0, self._start + self._due[0][0] - time.monotonic()) * 1000 + 1 if self._start and self._due else None

    def take(self) -> list[int]:
        """The signals that are due, each once."""
        if self.milliseconds is None or self._start + self._due[0][0] > time.monotonic():
            return []
        self.is_over = True
        return [self._due.pop(0)[1]]


def attend(
    connection: Connection,
    queue: SignalQueue,
    streams: Streams,
    limits: Limits,
    started: Callable[[int], None] | None = None,
) -> Result:
    """Forward signals and streams until the run ends. Raises the error of a process of the run.

    `started` is called with the PID of the run's first process when the root is ready.
    """
    result, data, has_started, first, clock = Result(), b"", False, 0, Clock(limits)
    poll = select.poll()
    for handle in (connection.fileno(), queue.handle):
        poll.register(handle, select.POLLIN)
    with streams.connected():
        while result.ended is None and result.refused is None:
            poll.poll(clock.milliseconds)
            for number in (*queue.take(), *clock.take()):
                if number == signal.SIGWINCH:
                    streams.resize()
                else:
                    result.interrupted = result.interrupted or number
                    with contextlib.suppress(OSError):  # the run has just ended
                        connection.sendall(bytes([number]))
            try:
                received = connection.recv(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except ConnectionError:
                received = b""
            *lines, data = (data + received).split(b"\n")
            for line in lines:
                try:
                    message = _decoder.decode(line)
                except msgspec.MsgspecError:  # a program of the image wrote it
                    continue
                if isinstance(message, Failed):
                    kind: type[ReproEnvError] = getattr(errors, message.kind, SandboxError)
                    raise kind(message.what, where=message.where, hint=message.hint)
                if isinstance(message, Forked):
                    first = first if has_started else message.pid
                elif isinstance(message, Started):
                    has_started = True
                    if started is not None:
                        started(first)
                    clock.start()
                    queue.is_forwarded = True
                    result.deviations += tuple(redact.line(text) for text in message.deviations[:_MAX_DEVIATIONS])
                elif isinstance(message, Ended):
                    result.ended = message
                else:
                    result.refused = message
            if not received or len(data) > _MAX_LINE:
                break
    result.timed_out = clock.is_over
    result.deviations += streams.deviations
    if not has_started and result.refused is None:
        raise SandboxError(
            "the processes of the run ended before the command started",
            hint="check whether the machine ran out of memory, and whether the image's Python starts",
        )
    return result


class SignalQueue:
    """Signals that have arrived. `handle` is readable if there are any; read it with `take` only.

    Python's handlers write the numbers to a pipe in any thread that the kernel chose for the signal (`signal.set_wakeup_fd`).
    If one thread blocked the signals instead, another thread would receive them, and they could end the process.
    """

    def __init__(self, handle: int, before: dict[int, _Handler]) -> None:
        self.handle = handle
        self.is_forwarded = False
        """Whether a command gets the signals. If not, they are raised in this process in the end."""
        self.taken: list[int] = []
        """All signals that were taken so far."""
        self._before = before

    def wait(self, milliseconds: float | None = None) -> None:
        """Wait for a signal, at most for this time."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        poll.poll(milliseconds)

    def take(self) -> list[int]:
        """Remove all signals from the queue. Returns their numbers in the order of arrival."""
        with contextlib.suppress(BlockingIOError):
            numbers = [number for number in os.read(self.handle, _READ) if number in self._before]
            self.taken += numbers
            return numbers
        return []

    def restore_defaults(self) -> None:
        """In a forked child: restore the kernel's default actions, except for signals that the caller ignored."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)


_held: list[int] = []


def hold_signal(number: int) -> None:
    """Hold a signal that comes before a command runs; the next `queue_signals` takes it. Must be called in the main thread."""
    signal.signal(number, lambda number, frame: _held.append(number))  # noqa: ARG005
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})  # a job script keeps it until now


@contextlib.contextmanager
def queue_signals(*more: int) -> Iterator[SignalQueue]:
    """Queue signals, and suppress their usual effects, while the block runs. Must be called in the main thread.

    These are the signals in `FORWARDED`, SIGWINCH and `more`.
    """
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def ignore(number: int, frame: object) -> None:
        """The signal is reported through the pipe."""

    before: dict[int, _Handler] = {}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    queue = SignalQueue(read, before)
    try:
        for number in (*FORWARDED, signal.SIGWINCH, *more):
            if signal.getsignal(number) is not None:  # a handler that was not set by Python cannot be restored
                before[number] = signal.signal(number, ignore)
        while _held:
            signal.raise_signal(_held.pop())
        yield queue
    finally:
        queue.take()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(read)
        os.close(write)
        if not queue.is_forwarded:
            for number in queue.taken:
                signal.raise_signal(number)
