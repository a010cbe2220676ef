"""Receive signals of this process as numbers from a pipe, in order to forward them.

Python's handlers write the numbers to the pipe in any thread that the kernel chose for the signal (`signal.set_wakeup_fd`). If
one thread blocked the signals instead, another thread would receive them, and they could end the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

_READ = 1 << 12
_Handler = Callable[[int, FrameType | None], object] | int | None


class SignalQueue:
    """Signals that have arrived. `handle` is readable if there are any; read it with `take` only."""

    def __init__(self, handle: int, before: dict[int, _Handler]) -> None:
        self.handle = handle
        self._before = before

    def take(self) -> list[int]:
        """Remove all signals from the queue. Returns their numbers in the order of arrival."""
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self.handle, _READ))
        return []

    def restore_defaults(self) -> None:
        """In a forked child: restore the kernel's default actions, except for signals that the caller ignored."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)


@contextlib.contextmanager
def queue_signals(numbers: Iterable[int]) -> Iterator[SignalQueue]:
    """Queue these signals, and suppress their usual effects, while the block runs. Must be called in the main thread."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def ignore(number: int, frame: object) -> None:
        """The signal is reported through the pipe."""

    before: dict[int, _Handler] = {}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        for number in numbers:
            if signal.getsignal(number) is not None:  # a handler that was not set by Python cannot be restored
                before[number] = signal.signal(number, ignore)
        yield SignalQueue(read, before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(read)
        os.close(write)
