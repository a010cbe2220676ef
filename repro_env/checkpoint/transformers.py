"""Make the checkpoints of the Hugging Face Trainer exact, so that a training resumes bit for bit, also within an epoch.

The Trainer saves weights, optimizer, scheduler and progress, and skips completed batches by index. It does not save the random
numbers of samples: wrap the training data in `repro_env.checkpoint.Keyed`, so that they depend only on epoch and index. It saves
the random generators before the evaluation at the end of an epoch, so `ExactResume` seeds them for each step. A killed process can leave an incomplete checkpoint: `ExactResume` adds checksums to each complete
one, and `last` finds the most recent one whose files match.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from transformers import TrainerCallback

from repro_env.checkpoint import files, keyed
from repro_env.checkpoint.errors import CheckpointError


class ExactResume(TrainerCallback):  # type: ignore[misc]
    """Sets the epoch of `Keyed` data, seeds the global generators for each step from the Trainer's seed, and adds checksums to
    each checkpoint. `save_total_limit` must be at least 2."""

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        dataset = getattr(others.get("train_dataloader"), "dataset", None)
        if not isinstance(dataset, keyed.Keyed):
            return
        if args.dataloader_num_workers and args.dataloader_persistent_workers:
            what = "a training with persistent workers cannot be resumed exactly, because they do not learn the epoch"
            raise CheckpointError(what, where="ExactResume()", hint="use dataloader_persistent_workers=False")
        dataset.epoch = int(state.epoch or 0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        keyed.seed_all("transformers", args.seed, args.process_index, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        if state.is_world_process_zero:
            files.seal(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))


def last(directory: Any) -> Optional[str]:
    """Return the path of the most recent intact checkpoint in an output directory, or None.

    Pass it to `trainer.train(resume_from_checkpoint=...)`.
    """
    where = os.fspath(directory)
    try:
        names = os.listdir(where)
    except FileNotFoundError:
        return None
    steps = sorted((int(name[11:]) for name in names if name.startswith("checkpoint-") and name[11:].isdigit()), reverse=True)
    paths = (os.path.join(where, f"checkpoint-{step}") for step in steps)
    return next((path for path in paths if files.is_sealed(path)), None)
