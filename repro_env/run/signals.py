"""The signals of this process as numbers to read, while somebody else is to have them.

Python's own handlers write the numbers, in whichever thread the kernel gave the signal to (`signal.set_wakeup_fd`): in a
process with other threads none is lost, and none ends the process, as it would be where one thread alone blocks them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType

_READ = 1 << 12
_Handler = Callable[[int, FrameType | None], object] | int | None


class Heard:
    """Signals that came. `handle` can be read when there are some; only `take` does."""

    def __init__(self, handle: int, before: dict[int, _Handler]) -> None:
        self.handle = handle
        self._before = before

    def take(self) -> list[int]:
        """What came since the last time, in that order."""
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self.handle, _READ))
        return []

    def forget(self) -> None:
        """In a child that was just forked: each does again what the kernel has for it, or is ignored as before."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)


@contextlib.contextmanager
def heard(numbers: Iterable[int]) -> Iterator[Heard]:
    """Hear these signals while the block runs; they do nothing else then. For the main thread."""
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def nothing(number: int, frame: object) -> None:
        """Told through the handle."""

    before: dict[int, _Handler] = {}
    wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        for number in numbers:
            if signal.getsignal(number) is not None:  # a handler that Python does not know could not be put back
                before[number] = signal.signal(number, nothing)
        yield Heard(read, before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(read)
        os.close(write)
