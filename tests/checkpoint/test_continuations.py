"""Trainings are killed after their checkpoints and resumed; every batch and the weights equal those of an uninterrupted training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.checkpoint import place
from tests.soak import note

KINDS = ("loader", "checkpoint", "replay", "accelerate", "lightning", "lightning_with_estimate", "transformers")


def different(directory: Path, combinations: Sequence[str], *, seconds: int = 300) -> list[str]:
    """Return a line for each training that did not continue as if it had not been killed."""
    arguments = (str(directory), ",".join(KINDS), ",".join(combinations))
    lines: list[str] = json.loads(place.run("continuations.py", *arguments, cwd=directory, seconds=seconds).splitlines()[-1])
    return lines


def test_a_killed_training_continues_with_the_same_batches(tmp_path: Path) -> None:
    """Killed within the first epoch, and at its end; three epochs follow."""
    assert different(tmp_path, ["2:0:yes", "6:2:no"]) == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_training_continues_from_each_checkpoint_of_two_epochs(tmp_path: Path) -> None:
    """Two complete epochs follow. Lightning saves after a validation or an epoch at points 5 and 10, otherwise after each step."""
    points = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12)
    combinations = [f"{point}:{workers}:{validates}" for point in points for workers in (0, 2) for validates in ("yes", "no")]
    lines = different(tmp_path, combinations, seconds=7000)
    note("continuations", {"trainings killed and resumed": len(KINDS) * len(combinations), "different": lines})
    assert lines == []
