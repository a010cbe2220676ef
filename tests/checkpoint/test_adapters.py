"""Lightning, Hugging Face Trainer and accelerate as they are: killed twice in the middle of a training, and gone on with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint import place


@pytest.mark.parametrize("workers", ["2", pytest.param("0,1", marks=pytest.mark.soak)])
def test_killed_and_gone_on(tmp_path: Path, workers: str) -> None:
    told = place.run("adapters.py", str(tmp_path), workers, cwd=tmp_path)
    assert told.count("by_lightning") == told.count("by_transformers") == told.count("by_accelerate") > 0
