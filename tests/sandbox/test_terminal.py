"""The separate terminal of a run: the caller's keys and terminal settings work as for any other program."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.sandbox.conftest import REPOSITORY, Place, environ
from tests.sandbox.test_runners import TERMINAL, read_until


@contextlib.contextmanager
def session(place: Place, script: str, *, pipe: bool = False) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a Python script as the leader of a terminal's session. With `pipe`, its stdout is a pipe."""
    main, side = pty.openpty()
    command, _, _ = place.command(place.launch("python", "-uc", script))
    stdout = subprocess.PIPE if pipe else side
    line = [sys.executable, "-c", TERMINAL, *command]
    driver = subprocess.Popen(line, cwd=REPOSITORY, env=environ(), stdin=side, stdout=stdout, stderr=side)
    os.close(side)
    try:
        yield main, driver
    finally:
        driver.kill()
        driver.wait()
        if driver.stdout:
            driver.stdout.close()
        os.close(main)


def _is_stopped(pid: int) -> bool:
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_z_stops_the_run_and_its_command_and_sigcont_continues_both(place: Place) -> None:
    with session(place, "import time\nfor n in range(9999): print('tick', n); time.sleep(0.02)") as (main, driver):
        read_until(main, b"tick 3")
        before = termios.tcgetattr(main)
        os.write(main, b"\x1a")
        _until(lambda: _is_stopped(driver.pid))
        assert termios.tcgetattr(main)[3] & termios.ICANON, "the terminal settings must be restored for the caller's shell"
        assert not before[3] & termios.ICANON
        os.set_blocking(main, False)
        time.sleep(0.2)
        with contextlib.suppress(BlockingIOError):
            os.read(main, 1 << 20)
        time.sleep(0.2)
        with contextlib.suppress(BlockingIOError):
            assert not os.read(main, 1 << 20), "the command must be stopped too"
        os.set_blocking(main, True)
        driver.send_signal(signal.SIGCONT)
        read_until(main, b"tick")
        os.write(main, b"\x03")
        read_until(main, b"KeyboardInterrupt")
        assert driver.wait(60) == 0


def test_a_terminal_has_a_name_in_the_run_and_passwords_are_not_echoed(place: Place) -> None:
    script = "import getpass, os; print(os.ttyname(0)); print('length', len(getpass.getpass('say: ')))"
    with session(place, script) as (main, driver):
        output = read_until(main, b"say: ")
        os.write(main, b"hidden\n")
        output += read_until(main, b"length 6")
        assert b"/dev/console\r\n" in output
        assert b"hidden" not in output
        assert driver.wait(60) == 0


def test_a_run_in_a_pipeline_writes_to_the_pipe_and_ends_with_one_ctrl_c(place: Place) -> None:
    script = "import os, sys, time; print([os.isatty(n) for n in (0, 1, 2)]); time.sleep(60)"
    with session(place, script, pipe=True) as (main, driver):
        assert driver.stdout
        assert driver.stdout.readline() == b"[True, False, True]\n"
        os.write(main, b"\x03")
        read_until(main, b"KeyboardInterrupt")
        assert driver.wait(60) == 0
