"""Ranks on gloo: each has its own random numbers, its own part of the data, and here its own means of BatchNorm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.checkpoint import place


def launch(folder: Path, ranks: int, kind: str, *, die: int = 0, ask: int = 0) -> tuple[str, str]:
    """What rank 0 said of the weights and generators of all; the errors."""
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
        [place.python(), *words, str(place.HERE / "distributed.py"), str(folder), kind, str(die), str(ask)],
        cwd=folder.parent,
        env=place.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert bool(done.returncode) == bool(die or ask), done.stderr[-4000:]
    return "".join(re.findall(r"^final .*", done.stdout, re.MULTILINE)), done.stderr


@pytest.mark.soak  # torch 2.13 can hang where a forked rank ends: freeing its reducer waits for gloo's thread, which waits for the GIL
def test_two_ranks(tmp_path: Path) -> None:
    """One of which is asked to end, and all of which are killed later."""
    place.run("distributed.py", str(tmp_path), cwd=tmp_path)


@pytest.mark.soak
def test_one_rank_is_asked_to_end(tmp_path: Path) -> None:
    whole, _ = launch(tmp_path / "whole", 2, "own")
    assert whole
    _, told = launch(tmp_path / "cut", 2, "own", ask=9)
    assert "SIGUSR1: saved at step 9" in told
    again, told = launch(tmp_path / "cut", 2, "own")
    assert again == whole
    assert "goes on from" in told


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [(2, "keyed"), pytest.param(2, "plain", marks=pytest.mark.soak), pytest.param(3, "steady", marks=pytest.mark.soak)],
)
def test_killed(tmp_path: Path, ranks: int, kind: str) -> None:
    whole, _ = launch(tmp_path / "whole", ranks, kind)
    launch(tmp_path / "cut", ranks, kind, die=7)
    assert launch(tmp_path / "cut", ranks, kind)[0] == whole


@pytest.mark.soak
def test_three_ranks_with_buckets_that_move_are_warned_of(tmp_path: Path) -> None:
    """DistributedDataParallel arranges its buckets anew after the first step of each process."""
    whole, told = launch(tmp_path / "whole", 3, "keyed")
    assert "find_unused_parameters=True" in told
    launch(tmp_path / "cut", 3, "keyed", die=7)
    assert launch(tmp_path / "cut", 3, "keyed")[0] != whole, "it holds now: the warning can go"
