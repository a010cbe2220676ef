"""Handlers of signals for the time of a block."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from repro_env.io.signals import handled


def test_signals_are_handled_in_the_block_and_the_handlers_before_return() -> None:
    received: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)
    with handled((signal.SIGUSR1, signal.SIGUSR2), lambda number, _frame: received.append(number)) as previous:
        assert previous[signal.SIGUSR1] == before
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
    assert received == [signal.SIGUSR1, signal.SIGUSR2]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_the_handlers_before_return_after_an_error() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(KeyError), handled([signal.SIGUSR1], signal.SIG_IGN):
        raise KeyError
    assert signal.getsignal(signal.SIGUSR1) == before


def test_another_thread_changes_no_handler() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    found: list[object] = []

    def work() -> None:
        with handled([signal.SIGUSR1], signal.SIG_IGN) as previous:
            found.extend((previous, signal.getsignal(signal.SIGUSR1)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{}, before]
