from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io.process import _communicate, run

PYTHON = sys.executable


def test_run_returns_output_and_exit_status() -> None:
    done = run(["sh", "-c", "printf out; printf err >&2; exit 7"])

    assert (done.code, done.stdout, done.stderr, done.timed_out) == (7, b"out", b"err", False)


def test_much_output_on_stderr_does_not_block() -> None:
    done = run(["sh", "-c", "head -c 3000000 /dev/zero >&2; head -c 2000000 /dev/zero; echo done"], timeout=60)

    assert (done.code, len(done.stderr), len(done.stdout), done.timed_out) == (0, 3_000_000, 2_000_005, False)


def test_binary_output_is_unchanged() -> None:
    data = bytes(range(256)) * 400

    assert run(["cat"], stdin=data).stdout == data


def test_a_child_may_leave_its_input_unread() -> None:
    assert run(["true"], stdin=bytes(1 << 20)).code == 0


def test_output_beyond_the_limit_is_dropped_and_the_child_finishes() -> None:
    done = run(["sh", "-c", "head -c 1000000 /dev/zero; exit 3"], limit=1000)

    assert (done.code, len(done.stdout)) == (3, 1000)


def test_a_child_and_its_grandchild_are_killed_at_the_timeout(tmp_path: Path) -> None:
    command = ["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; echo before; wait"]
    done = run(command, timeout=0.5)
    if not done.stdout:  # on a busy machine the first line may take longer
        done = run(command, timeout=50)

    assert done.timed_out
    assert done.code == -9
    assert done.stdout == b"before\n"
    _assert_ended(int((tmp_path / "pid").read_text()))


def test_a_grandchild_that_keeps_the_pipe_open_does_not_block(tmp_path: Path) -> None:
    started = time.monotonic()
    done = run(["sh", "-c", f"sleep 300 & echo $! > {tmp_path}/pid; echo hello"])

    assert (done.code, done.stdout, done.timed_out) == (0, b"hello\n", False)
    assert time.monotonic() - started < 30
    _assert_ended(int((tmp_path / "pid").read_text()))


def test_the_output_of_a_child_that_ended_before_the_deadline_is_read_whole() -> None:
    child = subprocess.Popen(["head", "-c", "5000", "/dev/zero"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    with child:
        assert _communicate(child, b"", time.monotonic() - 1, 1 << 20) == ([bytearray(5000), bytearray()], False)


def test_a_child_that_closes_its_pipes_and_hangs_times_out() -> None:
    done = run(["sh", "-c", "exec >&- 2>&-; sleep 300"], timeout=0.3)

    assert done.timed_out


def test_the_code_of_a_signal_is_negative() -> None:
    assert run(["sh", "-c", "kill -TERM $$"]).code == -15


def test_environment_and_working_directory_are_set(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), sorted(os.environ))"

    done = run([PYTHON, "-S", "-c", code], env={"ONLY": "this", "LC_ALL": "C.UTF-8"}, cwd=tmp_path)

    assert done.stdout.decode().split() == [str(tmp_path.resolve()), "['LC_ALL',", "'ONLY']"]


def test_the_child_has_no_terminal() -> None:
    assert run([PYTHON, "-c", "open('/dev/tty')"]).code == 1


def test_a_missing_program_raises_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        run(["repro-env-no-such-program"])


def _assert_ended(pid: int) -> None:
    for _ in range(5000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":  # a zombie, which init will reap
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail("the grandchild outlived the call")


def test_input_can_be_an_iterator() -> None:
    pieces = (bytes([number % 251]) * 70_000 for number in range(30))
    done = run([sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()))"], stdin=pieces)
    assert done.stdout == b"2100000\n"


def test_the_iterator_stops_when_the_child_closes_its_input() -> None:
    count = 0

    def pieces() -> Iterator[bytes]:
        nonlocal count
        while True:
            count += 1
            yield bytes(1 << 20)

    assert run([sys.executable, "-c", "import os; os.close(0)"], stdin=pieces(), timeout=60).code == 0
    assert count < 100


def test_an_exception_of_the_iterator_kills_the_child() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise ValueError("two")

    with pytest.raises(ValueError, match="two"):
        run(["sleep", "100"], stdin=pieces())
