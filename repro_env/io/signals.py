"""Handle signals for the time of a block."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


@contextlib.contextmanager
def handled(numbers: Iterable[int], handler: Handler) -> Iterator[dict[int, Handler]]:
    """Handle signals in the block; the value is the handlers before. Does nothing outside the main thread, which alone can do that."""
    is_main = threading.current_thread() is threading.main_thread()
    before: dict[int, Handler] = {number: signal.signal(number, handler) for number in numbers} if is_main else {}
    try:
        yield before
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
