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
def test_killed(tmp_path: Path, ranks: int, kind: str) -> None:
    """With more than two ranks the order of a sum depends on buckets, which a new process arranges in another way at first."""
    whole, _ = launch(tmp_path / "whole", ranks, kind)
    launch(tmp_path / "cut", ranks, kind, die=7)
    again, told = launch(tmp_path / "cut", ranks, kind)
    assert "CheckpointWarning" not in told
    assert again == whole


@pytest.mark.soak
def test_buckets_that_cannot_be_brought_back_are_told(tmp_path: Path) -> None:
    """And change the numbers: what `test_killed` looks at is not always so."""
    whole, _ = launch(tmp_path / "whole", 3, "hooked")
    launch(tmp_path / "cut", 3, "hooked", die=7)
    again, told = launch(tmp_path / "cut", 3, "hooked")
    assert "parameters have hooks" in told
    assert "find_unused_parameters=True" in told
    assert again != whole
