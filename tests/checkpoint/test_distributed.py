"""Distributed trainings with gloo, in which each rank has its own random numbers, data and means of BatchNorm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.checkpoint import place


def launch(directory: Path, ranks: int, kind: str, *, kill: int = 0, interrupt: int = 0) -> tuple[str, str]:
    """Run a training, and return what rank 0 printed about the final state of all ranks, and stderr."""
    words = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    done = subprocess.run(
        [place.python(), *words, str(place.HERE / "distributed.py"), str(directory), kind, str(kill), str(interrupt)],
        cwd=directory.parent,
        env=place.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert bool(done.returncode) == bool(kill or interrupt), done.stderr[-4000:]
    return "".join(re.findall(r"^final .*", done.stdout, re.MULTILINE)), done.stderr


@pytest.mark.soak  # torch 2.13 can hang when a forked rank ends: freeing its reducer waits for gloo's thread, which waits for the GIL
def test_two_ranks_resume_after_a_signal_and_a_kill(tmp_path: Path) -> None:
    """One rank receives a signal, and all ranks are killed later."""
    place.run("distributed.py", str(tmp_path), cwd=tmp_path)


@pytest.mark.soak
def test_all_ranks_exit_when_one_rank_receives_a_signal(tmp_path: Path) -> None:
    expected, _ = launch(tmp_path / "complete", 2, "own")
    assert expected
    _, errors = launch(tmp_path / "killed", 2, "own", interrupt=9)
    assert "received SIGUSR1, saved at step 9" in errors
    result, errors = launch(tmp_path / "killed", 2, "own")
    assert result == expected
    assert "resumed from" in errors


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        (3, "buckets"),
        *[
            pytest.param(ranks, kind, marks=pytest.mark.soak)
            for ranks, kind in [
                (2, "keyed"),
                (2, "plain"),
                (3, "keyed"),
                (3, "steady"),
                (3, "bare"),
                (3, "accumulated"),
                (4, "buckets"),
            ]
        ],
    ],
)
def test_a_killed_training_resumes_exactly(tmp_path: Path, ranks: int, kind: str) -> None:
    """With more than two ranks the order of sums depends on the gradient buckets, which a new process arranges differently."""
    expected, _ = launch(tmp_path / "complete", ranks, kind)
    launch(tmp_path / "killed", ranks, kind, kill=7)
    result, errors = launch(tmp_path / "killed", ranks, kind)
    assert "CheckpointWarning" not in errors
    assert result == expected


@pytest.mark.soak
def test_buckets_that_cannot_be_restored_cause_a_warning(tmp_path: Path) -> None:
    """The result then differs, which shows that the test above can detect different buckets."""
    expected, _ = launch(tmp_path / "complete", 3, "hooked")
    launch(tmp_path / "killed", 3, "hooked", kill=7)
    result, errors = launch(tmp_path / "killed", 3, "hooked")
    assert "the script registered hooks on parameters" in errors
    assert "find_unused_parameters=True" in errors
    assert result != expected
