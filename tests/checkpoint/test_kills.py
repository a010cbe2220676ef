"""A killed training resumes in a new process, and ends with the weights of an uninterrupted training."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.checkpoint import place


def final(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("final ")]
    assert len(lines) == 1, text[-2000:]
    return lines[0]


def train_and_measure(directory: Path, *options: str) -> tuple[str, float]:
    """Run a training without interruption. Returns its last line, and the seconds since its first step."""
    process = place.start("training.py", str(directory), *options, cwd=directory.parent)
    assert process.stdout is not None
    first = process.stdout.readline()
    began = time.monotonic()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-4000:]
    return final(first + out), time.monotonic() - began


def kill_and_resume(
    directory: Path, generator: random.Random, kills: int, within: float, *options: str, vary: tuple[str, ...] = ()
) -> tuple[str, int]:
    """Kill a training at random times, at most `kills` times, then let it finish. Returns its last line and the number of kills."""
    count = 0
    while True:
        workers = ["--workers", generator.choice(vary)] if vary else []
        process = place.start("training.py", str(directory), *options, *workers, cwd=directory.parent)
        assert process.stdout is not None
        first = process.stdout.readline()
        if count < kills and first:
            time.sleep(generator.uniform(0, within))
            os.kill(process.pid, signal.SIGKILL)
            if process.wait(300):  # workers that are still running may hold its output open
                assert process.returncode == -signal.SIGKILL
                process.stdout.close()
                assert process.stderr is not None
                process.stderr.close()
                count += 1
                continue
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-4000:]
        return final(first + out), count


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.soak)])
def test_a_kill_at_any_file_operation_leaves_an_intact_checkpoint(tmp_path: Path, stride: int) -> None:
    """Writes are incomplete, or a rename, flush or removal is missing; the last intact checkpoint always exists."""
    assert int(place.run("operations.py", str(tmp_path), str(stride), cwd=tmp_path)) > 100 // stride


@pytest.mark.soak
def test_training_resumes_within_an_epoch_with_another_number_of_workers(tmp_path: Path) -> None:
    """Keyed samples do not depend on the number of workers."""
    options = ("--workers", "2", "--every", "3", "--epochs", "2")
    expected = final(place.run("training.py", str(tmp_path / "complete"), *options, cwd=tmp_path))
    place.run("training.py", str(tmp_path / "killed"), *options, "--die-at", "14", cwd=tmp_path, codes=(-signal.SIGKILL,))
    assert final(place.run("training.py", str(tmp_path / "killed"), *options, "--workers", "0", cwd=tmp_path)) == expected


def test_each_kind_of_loader_resumes(tmp_path: Path) -> None:
    """The training is killed within an epoch and at its last batch."""
    place.run("resumes.py", str(tmp_path), cwd=tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("options", "vary"),
    [
        (("--loader", "keyed", "--workers", "2", "--start", "spawn"), ()),
        (("--loader", "plain", "--workers", "2"), ()),
        (("--loader", "keyed"), ("0", "1", "2", "3")),
    ],
    ids=["keyed-spawn", "plain-fork", "varying-numbers-of-workers"],
)
def test_training_resumes_after_kills_at_random_times(tmp_path: Path, options: tuple[str, ...], vary: tuple[str, ...]) -> None:
    """A checkpoint is written at each step, so that many kills happen while it is written."""
    every = ("--every", "1", "--epochs", "4", *options)
    expected, seconds = train_and_measure(tmp_path / "complete", *every)
    generator = random.Random(" ".join(options))
    done = 0
    while done < 20:
        found, kills = kill_and_resume(tmp_path / f"killed-{done}", generator, 3, seconds / 2, *every, vary=vary)
        assert found == expected, f"after {done + kills} kills"
        done += kills
