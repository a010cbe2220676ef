"""Runs that go on until the test ends them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tests.sandbox.conftest import REPOSITORY, Place, environ
from tests.sandbox.driver import Answer


class LiveRun:
    """A run in progress, with its driver process."""

    def __init__(self, command: list[str], directory: Path, answer: Path, run_id: str, **options: object) -> None:
        self.directory = directory
        self.run_id = run_id
        self._answer = answer
        self.lines: list[str] = []
        self.driver = subprocess.Popen(  # type: ignore[call-overload]
            command,
            cwd=REPOSITORY,
            env=environ(),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options,
        )

    def wait_for(self, line: str) -> None:
        """Wait until the command prints this line."""
        assert self.driver.stdout
        printed = ""
        while printed != line:
            printed = self.driver.stdout.readline()
            assert printed, f"the command ended without printing {line!r}: {self.lines}"
            printed = printed.rstrip("\n")
            self.lines.append(printed)

    @property
    def answer(self) -> Answer:
        self.driver.wait(100)
        return msgspec.json.decode(self._answer.read_bytes(), type=Answer)


@contextlib.contextmanager
def start_runs(place: Place) -> Iterator[Callable[..., LiveRun]]:
    """Yields a function that starts runs of Python scripts. They are killed at the end of the block."""
    runs: list[LiveRun] = []

    def start(script: str, *, driver: str = "", **options: object) -> LiveRun:
        """Start a run. `driver`: a script that starts it instead of `tests.sandbox.driver`."""
        launch = place.launch("python", "-uc", script)
        command, directory, answer = place.command(launch)
        if driver:
            command[-3:-1] = ["-c", driver]
        runs.append(LiveRun(command, directory, answer, launch.run_id, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.driver.kill()
        run.driver.wait()
        if run.driver.stdout:
            run.driver.stdout.close()


COUNTING = """
import os, signal, sys, time
got = []
def handle(number, frame):
    got.append(number)
    os.write(1, b"got %s\\n" % signal.Signals(number).name.encode())  # one system call, since the next signal may arrive any time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, handle)
print("ready")
deadline = time.monotonic() + 100
while signal.SIGUSR2 not in got and time.monotonic() < deadline: time.sleep(0.01)
time.sleep(0.2)
print("all", *[signal.Signals(number).name for number in got])
sys.exit(len(got))
"""
