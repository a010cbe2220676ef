"""The supervisor: signals reach the command, and a run whose supervisor is killed leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.sandbox.workspace import collect
from tests.fakes import rootfs
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


@pytest.fixture
def live(place: Place) -> Iterator[Callable[..., LiveRun]]:
    with start_runs(place) as start:
        yield start


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


def test_a_killed_supervisor_leaves_no_process_and_no_mount(live: Callable[..., LiveRun], place: Place) -> None:
    name = f"left-{os.getpid()}-{place.uid}"
    run = live(f"import os, time; os.fork() or (os.setsid(), time.sleep(600)); print('ready'); time.sleep(600) # {name}")
    run.wait_for("ready")
    assert len(_processes(name)) >= 2
    run.driver.kill()
    run.driver.wait()
    deadline = time.monotonic() + 100
    while _processes(name) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _processes(name) == []
    # Only mounts of this run: engines that other test workers use mount and unmount at any time.
    paths = (str(run.directory), str(place.store), str(place.root.parent))
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if any(path in line for path in paths)]
    collect(run.directory, place.store / "layers" / rootfs.digest(1000).removeprefix("sha256:"))
    assert sorted(path.name for path in run.directory.iterdir()) == ["console.log", "files"]
    assert not list((run.directory / "files").iterdir()), "files of repro-env must not become outputs"


def _processes(name: str) -> list[int]:
    pids = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if name.encode() in (path / "cmdline").read_bytes() and b"-uc" in (path / "cmdline").read_bytes():
                    pids.append(int(path.name))
    return pids


THREADS = """
import threading
from tests.sandbox import driver
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # these threads do not block signals
driver.main()
"""


def test_simultaneous_signals_reach_the_command_in_a_process_with_threads(live: Callable[..., LiveRun]) -> None:
    """While the supervisor handles a signal, the next one must neither get lost in another thread nor end the process."""
    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1]
    run = live(COUNTING, driver=THREADS)
    run.wait_for("ready")
    for number in numbers:
        run.driver.send_signal(number)
    assert run.driver.stdout
    assert {run.driver.stdout.readline() for _ in numbers} == {f"got {number.name}\n" for number in numbers}
    run.driver.send_signal(signal.SIGUSR2)
    run.wait_for("got SIGUSR2")
    assert run.answer.outcome is not None
    assert run.answer.outcome.exit_code == len(numbers) + 1


def test_the_signal_that_ended_the_command_does_not_end_the_supervisor_too(live: Callable[..., LiveRun]) -> None:
    """On a busy machine the command ends before the supervisor sees the Ctrl-C that was sent to both."""
    name = f"seen-late-{os.getpid()}"
    run = live(
        f"import signal, time; signal.signal(2, signal.SIG_DFL); print('ready'); time.sleep(60) # {name}", start_new_session=True
    )
    run.wait_for("ready")
    os.kill(run.driver.pid, signal.SIGSTOP)
    for number in (*_processes(name), run.driver.pid):
        os.kill(number, signal.SIGINT)
    deadline = time.monotonic() + 20
    while _processes(name):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # by then the end has been reported
    os.kill(run.driver.pid, signal.SIGCONT)
    answer = run.answer
    assert answer.outcome is not None, answer
    assert answer.outcome.signal == signal.SIGINT


EARLY = """
import os, signal, sys
from repro_env.schema.errors import SandboxError
from repro_env.sandbox.embedded.stage import Stage
from tests.sandbox import driver

enter = Stage.enter_namespaces
def enter_early(self):
    os.kill(os.getppid(), signal.SIGTERM)
    enter(self)
    if sys.argv[2] == "refused":
        raise SandboxError("namespaces are refused")
Stage.enter_namespaces = enter_early
driver.main()
print("finished")
"""


def _early(place: Place, word: str) -> subprocess.CompletedProcess[str]:
    """Start a run whose supervisor gets SIGTERM before the first process of the run exists. `word`: `refused` makes the start fail."""
    *start, _, _, plan = place.command(place.launch("sleep", "600"))[0]
    line = [*start, "-c", EARLY, plan, word]
    return subprocess.run(
        line, cwd=REPOSITORY, env=environ(), capture_output=True, text=True, check=False, timeout=60, start_new_session=True
    )


def test_a_signal_before_the_start_reaches_the_command(place: Place) -> None:
    done = _early(place, "works")
    assert done.stdout == "finished\n", done.stderr


def test_a_signal_before_the_start_ends_the_supervisor_if_the_start_fails(place: Place) -> None:
    done = _early(place, "refused")
    assert done.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), done.stderr
