"""System calls of ours whose effect nothing else shows."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import fcntl, os, signal, sys, threading, time
from repro_env.run import kernel

threading.Thread(target=threading.Event().wait, daemon=True).start()  # it blocks no signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
read, write = os.pipe()
if sys.argv[1] == "thread":
    kernel.owned_by_thread(read)
else:
    fcntl.fcntl(read, fcntl.F_SETOWN, os.getpid())
fcntl.fcntl(read, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
os.write(write, b".")
time.sleep(0.1)
sys.exit(0 if signal.sigtimedwait({signal.SIGIO}, 0) else 1)
"""


@pytest.mark.parametrize(("owner", "code"), [("thread", 0), ("process", -signal.SIGIO)])
def test_a_message_goes_to_the_thread_that_blocks_its_signal(owner: str, code: int) -> None:
    """To the whole process it would be the end: another thread takes it, and its default is to end the process."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, owner], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
