"""Signals that come before a command runs."""

from __future__ import annotations

import os
import signal

from repro_env.sandbox import session


def test_a_signal_that_comes_before_a_command_runs_is_held_for_it() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        session.hold_signal(signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
        for expected in ([signal.SIGUSR1], []):
            with session.queue_signals() as queue:
                queue.wait(10)
                queue.is_forwarded = True
                assert queue.take() == expected
    finally:
        signal.signal(signal.SIGUSR1, before)
