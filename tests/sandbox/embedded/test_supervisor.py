"""The supervisor: signals reach the command, and a run whose supervisor is killed leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from repro_env.sandbox.workspace import collect
from tests.fakes import rootfs
from tests.sandbox.conftest import REPOSITORY, Place, environ
from tests.sandbox.liveruns import COUNTING, LiveRun, start_runs


@pytest.fixture
def live(place: Place) -> Iterator[Callable[..., LiveRun]]:
    with start_runs(place) as start:
        yield start


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
