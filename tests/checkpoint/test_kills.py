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


def timed(folder: Path, *options: str) -> tuple[str, float]:
    """A whole training: its end, and seconds from its first step on."""
    process = place.start("training.py", str(folder), *options, cwd=folder.parent)
    assert process.stdout is not None
    first = process.stdout.readline()
    began = time.monotonic()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-4000:]
    return final(first + out), time.monotonic() - began


def killed_and_gone_on(
    folder: Path, chance: random.Random, kills: int, within: float, *options: str, vary: tuple[str, ...] = ()
) -> tuple[str, int]:
    """Kill at random moments, up to `kills` times; then let it finish. Its end, and how often it was killed."""
    done = 0
    while True:
        extra = ["--workers", chance.choice(vary)] if vary else []
        process = place.start("training.py", str(folder), *options, *extra, cwd=folder.parent)
        assert process.stdout is not None
        first = process.stdout.readline()
        if done < kills and first:
            time.sleep(chance.uniform(0, within))
            os.kill(process.pid, signal.SIGKILL)
            if process.wait(300):  # what it printed may be held open by workers that it left behind
                assert process.returncode == -signal.SIGKILL
                process.stdout.close()
                assert process.stderr is not None
                process.stderr.close()
                done += 1
                continue
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-4000:]
        return final(first + out), done


@pytest.mark.parametrize("stride", [13, pytest.param(1, marks=pytest.mark.soak)])
def test_at_each_operation_on_files(tmp_path: Path, stride: int) -> None:
    """Writes cut in half, no rename, no flush, a removal not finished: the last good one is always there."""
    assert int(place.run("operations.py", str(tmp_path), str(stride), cwd=tmp_path)) > 100 // stride


def test_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """And with another number of workers, since the samples are keyed."""
    options = ("--workers", "2", "--every", "3", "--epochs", "2")
    whole = final(place.run("training.py", str(tmp_path / "whole"), *options, cwd=tmp_path))
    place.run("training.py", str(tmp_path / "cut"), *options, "--die-at", "14", cwd=tmp_path, codes=(-signal.SIGKILL,))
    assert final(place.run("training.py", str(tmp_path / "cut"), *options, "--workers", "0", cwd=tmp_path)) == whole


def test_each_kind_of_loader(tmp_path: Path) -> None:
    """Killed in the middle of an epoch and at its last batch."""
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
    ids=["keyed-spawn", "plain-fork", "other-numbers-of-workers"],
)
def test_twenty_random_moments(tmp_path: Path, options: tuple[str, ...], vary: tuple[str, ...]) -> None:
    """A checkpoint at each step, so that many of the moments are in the middle of one."""
    every = ("--every", "1", "--epochs", "4", *options)
    whole, seconds = timed(tmp_path / "whole", *every)
    chance = random.Random(" ".join(options))
    done = 0
    while done < 20:
        found, kills = killed_and_gone_on(tmp_path / f"cut-{done}", chance, 3, seconds / 2, *every, vary=vary)
        assert found == whole, f"after {done + kills} kills"
        done += kills
