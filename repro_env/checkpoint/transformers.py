"""Hugging Face Trainer: its own checkpoints, from which a training goes on bit for bit, also in the middle of an epoch.

The Trainer keeps weights, optimizer, scheduler and progress, and skips what was done by index. What it does not keep is
made a function of where the training is: random numbers of each step by `ExactResume`, those of samples by
`repro_env.checkpoint.Keyed` around the training data. And its checkpoints are folders that a kill can leave half
written: each gets the sums of its files when it is whole, and `last` finds the youngest that still has them.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from transformers import TrainerCallback

from repro_env.checkpoint import files, keyed


class ExactResume(TrainerCallback):  # type: ignore[misc]
    """Seeds the global generators for each step. `seed`: else REPRO_ENV_SEED, else 0."""

    def __init__(self, seed: Optional[int] = None) -> None:
        self.seed = int(os.environ.get("REPRO_ENV_SEED") or 0) if seed is None else seed

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        dataset = getattr(others.get("train_dataloader"), "dataset", None)
        if isinstance(dataset, keyed.Keyed):
            dataset.epoch = int(state.epoch or 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        keyed.seed_all("transformers", self.seed, args.process_index, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            files.seal(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))


def last(folder: Any) -> Optional[str]:
    """The youngest checkpoint of an output folder that is whole, for `trainer.train(resume_from_checkpoint=...)`; else None."""
    where = os.fspath(folder)
    try:
        names = os.listdir(where)
    except FileNotFoundError:
        return None
    steps = sorted((int(name[11:]) for name in names if name.startswith("checkpoint-") and name[11:].isdigit()), reverse=True)
    whole = (path for path in (os.path.join(where, f"checkpoint-{step}") for step in steps) if files.sealed(path))
    return next(whole, None)
