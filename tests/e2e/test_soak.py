"""Long counts, for `make soak`: the same bytes many times over, and kills at many moments. Results go to benchmarks/results/."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from repro_env.io.files import remove_tree
from tests.e2e import parts
from tests.soak import note

pytestmark = pytest.mark.soak
COUNT = 100


def test_trainings_are_equal(digits: parts.Project, tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    for number in range(COUNT):
        runner = ("--runner", "host") if number % 10 == 0 else ()
        digits.run("exec", *runner, "train.py")
        digits.run("runs", "get", "latest", "--to", tmp_path / str(number))
        answer = json.dumps(parts.digests(tmp_path / str(number)), sort_keys=True)
        seen[answer] = seen.get(answer, 0) + 1
    note("trainings", {"runs": COUNT, "different results": len(seen)})
    assert len(seen) == 1


@pytest.mark.parametrize("command", ["capture", "rebuild", "exec"])
def test_commands_that_are_killed_at_any_time_give_the_same_result_afterwards(
    small: parts.Project, tmp_path: Path, command: str
) -> None:
    """Each kill is followed by the same command, to its end; what it makes is always the same."""
    there = small.elsewhere(tmp_path / "store")

    def words(output: str) -> list[str]:
        return {
            "capture": ["capture", "--python", str(small.python), "--output", str(tmp_path / output)],
            "rebuild": ["rebuild", str(small.directory / "repro")],
            "exec": ["exec", "--spec", str(small.directory / "repro"), "--runs", str(tmp_path / "runs"), "hello.py"],
        }[command]

    began = time.monotonic()
    there.run(*words("whole"))
    took = time.monotonic() - began
    remove_tree(there.store)
    chance = random.Random(1)
    killed = 0
    for _ in range(COUNT):
        child = subprocess.Popen(
            [parts.COMMAND, *words("repro")],
            cwd=small.directory,
            env=parts.environ(there.store),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(chance.uniform(0.02, took))
            remove_tree(there.store)  # it came to its end: begin anew
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            killed += 1
    there.run(*words("repro"))
    assert killed > COUNT // 2
    if command == "capture":
        made, whole = (json.loads((tmp_path / name / "spec.json").read_text()) for name in ("repro", "whole"))
        assert made == whole
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(there.store) not in mounts
    note(f"killed {command}", {"started": COUNT, "killed": killed})
