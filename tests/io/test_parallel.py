from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro_env.io.parallel import call_each, call_meanwhile
from repro_env.schema.errors import EngineError

ORDERED = """
import os, sys, time
from functools import partial
from pathlib import Path
from repro_env.io.parallel import call_each
directory = Path(sys.argv[1])
def task(number):
    print("out", number)
    print("err", number, file=sys.stderr)
    while number % 2 == 0 and not (directory / str(number + 1)).exists():
        time.sleep(0.01)
    (directory / str(number)).touch()
    return number, os.getpid()
pids = set()
for number, pid in call_each([partial(task, number) for number in range(6)], 2):
    print("result", number)
    pids.add(pid)
assert len(pids | {os.getpid()}) == 7
"""


def test_functions_run_at_the_same_time_and_their_output_is_in_order(tmp_path: Path) -> None:
    """Every second function ends only after the one that follows it."""
    done = subprocess.run([sys.executable, "-c", ORDERED, str(tmp_path)], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "".join(f"out {number}\nresult {number}\n" for number in range(6))
    assert done.stderr == "".join(f"err {number}\n" for number in range(6))


def test_at_most_that_many_functions_run_at_a_time(tmp_path: Path) -> None:
    def count(number: int) -> int:
        mine = tmp_path / str(number)
        mine.touch()
        running = len(list(tmp_path.iterdir()))
        time.sleep(0.05)
        mine.unlink()
        return running

    assert max(call_each([functools.partial(count, number) for number in range(9)], 3)) <= 3


def test_an_error_is_raised_in_its_turn_and_ends_the_others(tmp_path: Path) -> None:
    def fail() -> int:
        raise EngineError("gone", where="here", hint="there", status=404)

    def wait() -> int:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(1000)
        return 3

    results = call_each([lambda: 1, fail, wait], 3)
    assert next(results) == 1
    with pytest.raises(EngineError, match="gone") as caught:
        next(results)
    assert (caught.value.where, caught.value.hint, caught.value.status) == ("here", "there", 404)
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)


def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="without a result"):
        list(call_each([lambda: os.kill(os.getpid(), signal.SIGKILL)], 2))


SIGNALLED = """
import os, signal, sys, time
from repro_env.io.parallel import call_each
def wait():
    signal.signal(signal.SIGTERM, lambda *_: done.append(1))
    done = []
    open(sys.argv[1] + "/" + str(os.getpid()), "w").close()
    while not done: time.sleep(0.01)
    return "ended"
print(list(call_each([wait] * 5, 2)))
"""


SLOW = """
import os, time
from repro_env.io.parallel import call_each
forks = []
os.register_at_fork(before=lambda: forks.append(1), after_in_child=lambda: time.sleep(len(forks) - 1))
results = call_each([lambda: 1 / 0, lambda: time.sleep(1000)], 2)
try:
    next(results)
except ZeroDivisionError:
    print("raised")
"""


def test_a_signal_also_ends_a_process_that_has_just_started() -> None:
    """It has the parent's handlers until its own are set."""
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == "raised\n"


def test_signals_reach_the_functions_and_no_other_starts(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SIGNALLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=100)[0] == "['ended', 'ended']\n"
    assert process.returncode == 0


def test_a_function_is_called_while_a_block_runs(tmp_path: Path) -> None:
    def wait() -> int:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return os.getpid()

    with call_meanwhile(wait) as result:
        (tmp_path / "go").touch()
        assert result() != os.getpid()
    with call_meanwhile(functools.partial(int, "x")) as failing, pytest.raises(ValueError, match="invalid literal"):
        failing()
    started = time.monotonic()
    with pytest.raises(KeyError), call_meanwhile(functools.partial(time.sleep, 100)):
        raise KeyError
    assert time.monotonic() - started < 50
