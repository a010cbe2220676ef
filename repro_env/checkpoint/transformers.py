"""Hugging Face Trainer: its own checkpoints, from which a training goes on bit for bit, also in the middle of an epoch.

The Trainer keeps weights, optimizer, scheduler, progress and random generators, and skips what was done by index. What
it does not keep are the random numbers of samples: `repro_env.checkpoint.Keyed` around the training data makes them a
function of epoch and index. And its checkpoints are folders that a kill can leave half written: each gets the sums of
its files when it is whole, and `last` finds the youngest that still has them.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from transformers import TrainerCallback

from repro_env.checkpoint import files, keyed


class ExactResume(TrainerCallback):  # type: ignore[misc]
    """Tells `Keyed` data which epoch it is, and seals each checkpoint. `save_total_limit` has to leave two or more."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        dataset = getattr(others.get("train_dataloader"), "dataset", None)
        if isinstance(dataset, keyed.Keyed):
            dataset.epoch = int(state.epoch or 0)

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
