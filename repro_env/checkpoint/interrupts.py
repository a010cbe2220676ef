"""TERM and USR1: remembered when they come, acted on after the step that is running."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, Optional

from repro_env.checkpoint.errors import CheckpointWarning

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Interrupts:
    """In place from `listen` to `close`. What listened before is called as well, when it is a function."""

    def __init__(self) -> None:
        self.came = 0
        """The signal's number; 0 for none yet."""
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()
        self._child: Optional[Callable[[], None]] = None

    def listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            warnings.warn(
                "TERM and USR1 are not acted on: Python hears signals in its main thread only", CheckpointWarning, stacklevel=3
            )
            return
        self._owner = os.getpid()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._hear)
        if self._child is None:
            self._child = self._after_fork
            os.register_at_fork(after_in_child=self._child)

    def close(self) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before = {}

    def _hear(self, number: int, frame: Optional[FrameType]) -> None:
        self.came = number
        # A signal for a whole job reaches the loader's workers too: torch would raise here, in the middle of a step,
        # that they are gone. What is left to do without them is to save.
        if callable(signal.getsignal(signal.SIGCHLD)):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        before = self._before.get(number)
        if callable(before):
            before(number, frame)

    def _after_fork(self) -> None:
        """In a child, TERM ends it as it would without us; USR1 is a word to the parent, and no end."""
        if not self._before:
            return
        before, self._before = self._before, {}
        self.came = 0
        for number, old in before.items():
            if signal.getsignal(number) == self._hear:
                usual = signal.SIG_DFL if old is None else old
                signal.signal(number, signal.SIG_IGN if number == signal.SIGUSR1 and usual == signal.SIG_DFL else usual)


def leave(number: int, steps: int, iterator: Any, *, tell: bool) -> NoReturn:
    """End as the signal asks for; a checkpoint was written. Raises `SystemExit`."""
    # Workers of a loader that is left in its middle would be waited for at exit.
    shut = getattr(iterator, "_shutdown_workers", None)
    if callable(shut):
        with contextlib.suppress(Exception):
            shut()
    if tell:
        sys.stderr.write(f"repro-env: {signal.Signals(number).name}: saved at step {steps}, and ends\n")
    raise SystemExit(128 + number)
