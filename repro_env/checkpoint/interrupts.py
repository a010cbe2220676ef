"""Handle SIGTERM and SIGUSR1: a signal is recorded, and the training saves and exits after the current step."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Optional

from repro_env.checkpoint.errors import CheckpointWarning

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Interrupts:
    """Signal handlers that are installed between `listen` and `close`. They also call the previous handlers."""

    def __init__(self) -> None:
        self.received = 0
        """The number of the last signal, or 0."""
        self._previous: dict[int, Any] = {}
        self._child: Optional[Callable[[], None]] = None

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            warnings.warn(
                "SIGTERM and SIGUSR1 are not handled, because the Checkpoint was not created in the main thread",
                CheckpointWarning,
                stacklevel=3,
            )
            return
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        if self._child is None:
            self._child = self._after_fork
            os.register_at_fork(after_in_child=self._child)

    def close(self) -> None:
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous = {}

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = number
        # A signal to all processes of a job also ends the loader's workers, and torch would raise an error about them in
        # the middle of a step. The checkpoint can be saved without them.
        if callable(signal.getsignal(signal.SIGCHLD)):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        previous = self._previous.get(number)
        if callable(previous):
            previous(number, frame)

    def _after_fork(self) -> None:
        """Restore the previous handlers in a child process, except that SIGUSR1 is ignored instead of ending it."""
        handlers, self._previous = self._previous, {}
        self.received = 0
        for number, previous in handlers.items():
            if signal.getsignal(number) == self._handle:
                handler = signal.SIG_DFL if previous is None else previous
                is_fatal = number == signal.SIGUSR1 and handler == signal.SIG_DFL
                signal.signal(number, signal.SIG_IGN if is_fatal else handler)
