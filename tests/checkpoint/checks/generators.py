"""Random generators."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from repro_env.checkpoint import Checkpoint


def generators_of_the_script_are_restored(directory: Path) -> None:
    own = {
        "python": random.Random(1),
        "numpy": np.random.default_rng(1),
        "old": np.random.RandomState(1),
        "torch_": torch.Generator(),
    }

    def draw() -> list[float]:
        return [
            own["python"].random(),
            own["numpy"].random(),
            own["old"].rand(),
            torch.rand((), generator=own["torch_"]).item(),
            random.random(),
            float(np.random.rand()),
            torch.rand(()).item(),
        ]

    training = Checkpoint(directory / "c", signals=False, **own)
    training.save()
    first = draw()
    second = Checkpoint(directory / "c", signals=False, **own)
    second.resume()
    assert draw() == first
    assert second.resume()
    assert draw() == first, "a repeated resume restores a different state"
