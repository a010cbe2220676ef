"""The supervisor from outside: signals reach the command, and nothing is left of a run whose supervisor is killed."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.run import outside
from tests.run.conftest import REPOSITORY, Place, environ
from tests.run.driver import Answer


class Live:
    """A run that goes on: its driver, and how to ask it things."""

    def __init__(self, place: Place, command: list[str], folder: Path, answer: Path, **options: object) -> None:
        self.folder = folder
        self._answer = answer
        self.lines: list[str] = []
        self.driver = subprocess.Popen(  # type: ignore[call-overload]
            command,
            cwd=REPOSITORY,
            env=environ(),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | options,
        )

    def said(self, line: str) -> None:
        """Wait for a line of the command's."""
        assert self.driver.stdout
        heard = ""
        while heard != line:
            heard = self.driver.stdout.readline()
            assert heard, f"it ended without saying {line!r}: {self.lines}"
            heard = heard.rstrip("\n")
            self.lines.append(heard)

    @property
    def answer(self) -> Answer:
        self.driver.wait(100)
        return msgspec.json.decode(self._answer.read_bytes(), type=Answer)


@contextlib.contextmanager
def lives(place: Place) -> Iterator[Callable[..., Live]]:
    """Starts runs of Python scripts there; none outlives the block."""
    started: list[Live] = []

    def start(script: str, *, driver: str = "", **options: object) -> Live:
        """`driver`: a script that starts the run in place of `tests.run.driver`."""
        command, folder, answer = place.command(place.launch("python", "-uc", script))
        if driver:
            command[-3:-1] = ["-c", driver]
        started.append(Live(place, command, folder, answer, **options))
        return started[-1]

    yield start
    for one in started:
        one.driver.kill()
        one.driver.wait()
        if one.driver.stdout:
            one.driver.stdout.close()


@pytest.fixture
def live(place: Place) -> Iterator[Callable[..., Live]]:
    with lives(place) as start:
        yield start


COUNTING = """
import os, signal, sys, time
got = []
def handle(number, frame):
    got.append(number)
    os.write(1, b"got %s\\n" % signal.Signals(number).name.encode())  # at once: the next signal may come meanwhile
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
    signal.signal(number, handle)
print("ready")
deadline = time.monotonic() + 100
while signal.SIGUSR2 not in got and time.monotonic() < deadline: time.sleep(0.01)
time.sleep(0.2)
print("all", *[signal.Signals(number).name for number in got])
sys.exit(len(got))
"""


def test_signals_to_the_supervisor_reach_the_command_once(live: Callable[..., Live]) -> None:
    run = live(COUNTING)
    run.said("ready")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH, signal.SIGUSR2):
        run.driver.send_signal(number)
        run.said(f"got {number.name}")
    run.said("all SIGTERM SIGHUP SIGINT SIGUSR1 SIGWINCH SIGUSR2")
    assert run.answer.outcome is not None
    assert run.answer.outcome.exit_code == 6


def test_signals_to_the_whole_group_reach_the_command_once(live: Callable[..., Live]) -> None:
    """As `timeout`, `kill -- -GROUP` and the terminal send them."""
    run = live(COUNTING, start_new_session=True)
    run.said("ready")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        os.killpg(run.driver.pid, number)
        run.said(f"got {number.name}")
    run.said("all SIGTERM SIGINT SIGUSR2")


def test_an_unhandled_signal_ends_the_command(live: Callable[..., Live]) -> None:
    run = live("import time; print('ready'); time.sleep(60)")
    run.said("ready")
    run.driver.send_signal(signal.SIGTERM)
    outcome = run.answer.outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.signal) == (143, signal.SIGTERM)


def test_ctrl_c_on_a_terminal_reaches_the_command_once(live: Callable[..., Live], place: Place) -> None:
    main, other = pty.openpty()
    script = "import ctypes, fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    command, folder, answer = place.command(place.launch("python", "-uc", COUNTING))
    run = Live(place, [sys.executable, "-c", script, *command], folder, answer, stdin=other)
    try:
        run.said("ready")
        os.write(main, b"\x03")
        run.said("got SIGINT")
        run.driver.send_signal(signal.SIGUSR2)
        run.said("all SIGINT SIGUSR2")
        assert run.answer.outcome is not None
    finally:
        os.close(main)
        os.close(other)
        run.driver.kill()
        run.driver.wait()
        assert run.driver.stdout
        run.driver.stdout.close()


def test_a_killed_supervisor_leaves_no_process_and_no_mount(live: Callable[..., Live], place: Place) -> None:
    name = f"left-{os.getpid()}-{place.uid}"
    run = live(f"import os, time; os.fork() or (os.setsid(), time.sleep(600)); print('ready'); time.sleep(600) # {name}")
    run.said("ready")
    assert len(_processes(name)) >= 2
    run.driver.kill()
    run.driver.wait()
    deadline = time.monotonic() + 100
    while _processes(name) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _processes(name) == []
    # Of this run: engines that other workers use mount and unmount at any time.
    ours = (str(run.folder), str(place.store), str(place.root.parent))
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if any(path in line for path in ours)]
    assert (run.folder / ".scratch").is_dir()
    deadline = time.monotonic() + 100
    while (run.folder / ".scratch").exists() and time.monotonic() < deadline:  # the last process may still be going
        place.sh(":")
    there = sorted(path.name for path in run.folder.iterdir())
    assert there == [".outside.json", "console.log", "files", "outside"]
    outside.settle(run.folder)
    assert not (run.folder / "outside").exists(), "nothing of ours is taken for an output"


def _processes(name: str) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if name.encode() in (path / "cmdline").read_bytes() and b"-uc" in (path / "cmdline").read_bytes():
                    found.append(int(path.name))
    return found


def test_a_run_in_progress_keeps_its_scratch_folder(live: Callable[..., Live], place: Place) -> None:
    run = live("import os, sys, time; open('/tmp/mine', 'w').write('kept'); print('ready'); time.sleep(60)")
    run.said("ready")
    place.sh(":")
    assert (run.folder / ".scratch").is_dir()
    run.driver.send_signal(signal.SIGTERM)
    assert run.answer.outcome
    assert not (run.folder / ".scratch").exists()


THREADS = """
import threading
from tests.run import driver
for _ in range(4):
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # they block no signal
driver.main()
"""


def test_signals_at_once_reach_the_command_in_a_process_with_threads(live: Callable[..., Live]) -> None:
    """While the supervisor is busy with one, no other thread may take the next, or end the process by it."""
    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGWINCH]
    run = live(COUNTING, driver=THREADS)
    run.said("ready")
    for number in numbers:
        run.driver.send_signal(number)
    assert run.driver.stdout
    assert {run.driver.stdout.readline() for _ in numbers} == {f"got {number.name}\n" for number in numbers}
    run.driver.send_signal(signal.SIGUSR2)
    run.said("got SIGUSR2")
    assert run.answer.outcome is not None
    assert run.answer.outcome.exit_code == len(numbers) + 1


def test_a_signal_that_is_seen_after_the_end_it_made_is_no_other_one(live: Callable[..., Live]) -> None:
    """On a busy machine the command is over before the supervisor sees the Ctrl-C that ended both."""
    name = f"seen-late-{os.getpid()}"
    run = live(
        f"import signal, time; signal.signal(2, signal.SIG_DFL); print('ready'); time.sleep(60) # {name}", start_new_session=True
    )
    run.said("ready")
    os.kill(run.driver.pid, signal.SIGSTOP)
    for number in (*_processes(name), run.driver.pid):
        os.kill(number, signal.SIGINT)
    deadline = time.monotonic() + 20
    while _processes(name):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # its end is told by then
    os.kill(run.driver.pid, signal.SIGCONT)
    outcome = run.answer.outcome
    assert outcome is not None
    assert outcome.signal == signal.SIGINT


EARLY = """
import contextlib, os, signal, sys
from pathlib import Path
import msgspec
from repro_env.model.errors import SandboxError
from repro_env.run.stage import Stage
from repro_env.run.strategy import BEST
from repro_env.run.supervisor import supervise
from tests.run.driver import Answer, Plan

class Early(Stage):
    def between(self):
        os.kill(os.getppid(), signal.SIGTERM)
        super().between()
        if sys.argv[1] == "refused":
            raise SandboxError("is refused")

plan = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Plan)
store = Path(plan.store)
trees = [store / "layers" / one.removeprefix("sha256:") for one in (*plan.launch.layers, plan.launch.snapshot)]
with contextlib.ExitStack() as stack:
    stage = Early(plan.launch, Path(plan.folder), trees[:-1], trees[-1], BEST, store / "merged", None, "/bin/python", None, stack)
    print("status", os.waitstatus_to_exitcode(supervise(plan.launch, stage).status))
"""


def _early(place: Place, word: str) -> subprocess.CompletedProcess[str]:
    """A run that is told to stop before there is a process that the command will come of."""
    *start, _, _, plan = place.command(place.launch("sleep", "2"))[0]
    line = [*start, "-c", EARLY, word, plan]
    return subprocess.run(
        line, cwd=REPOSITORY, env=environ(), capture_output=True, text=True, check=False, timeout=60, start_new_session=True
    )


def test_a_signal_before_there_is_a_command_reaches_it(place: Place) -> None:
    done = _early(place, "goes on")
    assert done.stdout == f"status -{int(signal.SIGTERM)}\n", done.stderr


def test_a_signal_before_there_is_a_command_ends_us_where_none_comes(place: Place) -> None:
    done = _early(place, "refused")
    assert done.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), done.stderr
