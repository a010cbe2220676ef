"""A training that is killed goes on in a new process, and ends with the weights of one that was not."""

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


def killed_and_gone_on(folder: Path, chance: random.Random, kills: int, *options: str, vary: tuple[str, ...] = ()) -> str:
    """Kill at random moments after the first step, up to `kills` times; then let it finish."""
    left = kills
    while True:
        extra = ["--workers", chance.choice(vary)] if vary else []
        process = place.start("training.py", str(folder), *options, *extra, cwd=folder.parent)
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        if left and lines[0]:
            time.sleep(chance.uniform(0, 0.35))  # a training takes about twice that
            os.kill(process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=120)
        if process.returncode == 0:
            return final(lines[0] + out)
        assert process.returncode == -signal.SIGKILL, err[-4000:]
        left -= 1


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_at_each_operation_on_files(tmp_path: Path, stride: int) -> None:
    """Writes cut in half, no rename, no flush, a removal not finished: the last good one is always there."""
    assert int(place.run("operations.py", str(tmp_path), str(stride), cwd=tmp_path)) > 60 // stride


def test_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """And with another number of workers, since the samples are keyed."""
    options = ("--workers", "2", "--every", "3")
    whole = final(place.run("training.py", str(tmp_path / "whole"), *options, cwd=tmp_path))
    place.run("training.py", str(tmp_path / "cut"), *options, "--die-at", "17", cwd=tmp_path, codes=(-signal.SIGKILL,))
    assert final(place.run("training.py", str(tmp_path / "cut"), "--every", "3", cwd=tmp_path)) == whole


def test_each_kind_of_loader(tmp_path: Path) -> None:
    """Killed in the middle of an epoch and at its last batch."""
    place.run("resumes.py", str(tmp_path), cwd=tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("loader", "workers", "start"),
    [("keyed", "0", "fork"), ("keyed", "2", "spawn"), ("plain", "0", "fork"), ("plain", "2", "fork"), ("generator", "2", "fork")],
)
def test_twenty_random_moments(tmp_path: Path, loader: str, workers: str, start: str) -> None:
    options = ("--loader", loader, "--workers", workers, "--start", start, "--every", "1", "--epochs", "12")
    whole = final(place.run("training.py", str(tmp_path / "whole"), *options, cwd=tmp_path))
    chance = random.Random(f"{loader} {workers} {start}")
    for turn in range(20):
        found = killed_and_gone_on(tmp_path / f"cut-{turn}", chance, 3, *options)
        assert found == whole, f"turn {turn}"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_twenty_random_moments_with_other_numbers_of_workers(tmp_path: Path) -> None:
    options = ("--loader", "keyed", "--every", "2", "--epochs", "12")
    whole = final(place.run("training.py", str(tmp_path / "whole"), *options, cwd=tmp_path))
    chance = random.Random(7)
    for turn in range(20):
        found = killed_and_gone_on(tmp_path / f"cut-{turn}", chance, 3, *options, vary=("0", "1", "2", "3"))
        assert found == whole, f"turn {turn}"
