"""Stop reading files soon after a signal, so that the user does not wait until large outputs are read."""

from __future__ import annotations

import errno
import math
import signal
import time

_SECONDS = 2.0
"""What is read by then is complete: an impatient second Ctrl-C must not lose the digests of small outputs."""


class Patience:
    """Until when this process reads the content of files. All threads use the same one."""

    def __init__(self) -> None:
        """Start without a limit."""
        self._deadline = math.inf
        self._signal = 0
        self.ended_by = 0
        """The signal that left a file unread, or 0."""

    def limit(self, number: int) -> None:
        """Read no longer than two seconds after this signal."""
        if self._deadline == math.inf:
            self._deadline, self._signal = time.monotonic() + _SECONDS, number

    def restore(self) -> None:
        """Read without a limit again."""
        self.__init__()  # type: ignore[misc]

    def check(self) -> None:
        """Raise `OSError` if the time is over."""
        if time.monotonic() > self._deadline:
            self.ended_by = self._signal
            raise OSError(errno.EINTR, f"{signal.Signals(self._signal).name} ended the reading")


PATIENCE = Patience()
