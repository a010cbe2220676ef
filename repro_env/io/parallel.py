"""Call functions in forked processes, some at a time, with their output in order.

Processes and not threads, because a runner handles signals, which only the main thread of a process can do.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, NoReturn, TypeVar, cast

T = TypeVar("T")
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_READ = 1 << 16
_Handler = Callable[[int, FrameType | None], Any] | int | None


class _Child:
    """A process that calls a function."""

    def __init__(self, function: Callable[[], object], handlers: dict[signal.Signals, _Handler]) -> None:
        self.files = [tempfile.TemporaryFile(prefix="repro-env-") for _ in (1, 2)]  # noqa: SIM115  `close` closes them
        self.pipe, write = os.pipe2(os.O_CLOEXEC)
        self.data = b""
        self.is_over = False
        self.pid = os.fork()
        if self.pid == 0:
            _call(function, write, self.files, handlers)
        os.close(write)

    def read(self) -> None:
        """Read a part of the result."""
        data = os.read(self.pipe, _READ)
        self.data += data
        if not data:
            self.end()

    def end(self) -> None:
        """Wait for the end of the process."""
        if not self.is_over:
            self.is_over = True
            os.close(self.pipe)
            os.waitpid(self.pid, 0)

    def close(self) -> None:
        """Wait for the end of the process, and drop its output."""
        self.end()
        for file in self.files:
            file.close()

    def print(self) -> None:
        """Copy what the process printed to this process's stdout and stderr."""
        for file, stream in zip(self.files, (sys.stdout, sys.stderr), strict=True):
            stream.flush()
            file.seek(0)
            with os.fdopen(os.dup(1 if stream is sys.stdout else 2), "wb") as target:
                shutil.copyfileobj(file, target)

    def result(self) -> Any:
        """What the function returned. Raises what it raised."""
        if not self.data:
            raise ChildProcessError("a process ended without a result; check whether the machine ran out of memory")
        value, error = pickle.loads(self.data)  # noqa: S301  written by our own process
        if error is not None:
            raise error
        return value


def call_each(functions: Sequence[Callable[[], T]], jobs: int) -> Generator[T, None, None]:
    """Call each function in its own process, at most `jobs` at a time. Yields the results in order, and prints their output before.

    The functions have no input. SIGINT, SIGTERM and SIGHUP are passed to all processes, and then no other function is called.
    Raises what a function raised, in its turn; then, or if the caller closes the generator, which it must do, the others get SIGTERM
    and are waited for.
    """
    children: list[_Child] = []
    stops: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stops.append(number)
        for child in children:
            if not child.is_over:
                os.kill(child.pid, number)

    handlers: dict[signal.Signals, _Handler] = {number: signal.signal(number, forward) for number in _STOPS}
    try:
        for turn in range(len(functions)):
            while len(children) <= turn or not children[turn].is_over:
                running = [child for child in children if not child.is_over]
                with _stops_held():
                    can_start = len(running) < jobs and len(children) < len(functions) and not stops
                    if can_start:
                        children.append(_Child(functions[len(children)], handlers))
                if can_start:
                    continue
                if not running:
                    return
                poll = select.poll()
                for child in running:
                    poll.register(child.pipe, select.POLLIN)
                ready = {handle for handle, _ in poll.poll()}
                for child in running:
                    if child.pipe in ready:
                        child.read()
            children[turn].print()
            yield children[turn].result()
    finally:
        forward(signal.SIGTERM, None)
        for child in children:
            child.close()
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def call_meanwhile(function: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Call a function in another process while the block runs. Yields a function that waits for what it returns or raises.

    If the block ends before that, the other process gets SIGTERM.
    """
    child = _Child(function, {})

    def result() -> T:
        while not child.is_over:
            child.read()
        return cast("T", child.result())

    try:
        yield result
    finally:
        if not child.is_over:
            os.kill(child.pid, signal.SIGTERM)
        child.close()


@contextmanager
def _stops_held() -> Iterator[None]:
    """Let signals wait. A process that starts here can be sent signals at once, and gets them when it has its own handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _call(
    function: Callable[[], object], write: int, files: Sequence[IO[bytes]], handlers: dict[signal.Signals, _Handler]
) -> NoReturn:
    """In the new process: call the function, and write its result."""
    try:
        os.setsid()  # signals of the terminal come from the parent instead
        for stop, handler in handlers.items():
            signal.signal(stop, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        null = os.open(os.devnull, os.O_RDONLY)
        for number, handle in enumerate((null, *(file.fileno() for file in files))):
            os.dup2(handle, number)
        try:
            result: tuple[object, BaseException | None] = (function(), None)
        except Exception as error:  # noqa: BLE001  raised in the parent
            result = (None, error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with os.fdopen(write, "wb") as pipe:
            pipe.write(pickle.dumps(result))
    finally:
        os._exit(0)
