"""Trainings with Lightning, Hugging Face Trainer and accelerate are killed twice and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint import place


@pytest.mark.parametrize("workers", ["2", pytest.param("0,1", marks=pytest.mark.soak)])
def test_a_killed_training_resumes_exactly(tmp_path: Path, workers: str) -> None:
    output = place.run("adapters.py", str(tmp_path), workers, cwd=tmp_path)
    assert output.count("by_lightning") == output.count("by_transformers") == output.count("by_accelerate") > 0
