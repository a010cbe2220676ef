"""Lightning: its own checkpoints, from which a training goes on bit for bit, also in the middle of an epoch.

Lightning keeps weights, optimizers, schedulers and progress. What it does not keep is made a function of where the
training is: random numbers of each batch by `ExactResume`, order and samples by `repro_env.checkpoint.loader`.
"""

from __future__ import annotations

import os
from typing import Any, Optional

from lightning.pytorch import Callback

from repro_env.checkpoint import keyed


class ExactResume(Callback):  # type: ignore[misc]
    """Seeds the global generators for each batch, each epoch and each validation. `seed`: else REPRO_ENV_SEED, else 0."""

    def __init__(self, seed: Optional[int] = None) -> None:
        self.seed = int(os.environ.get("REPRO_ENV_SEED") or 0) if seed is None else seed

    def _seed(self, trainer: Any, *where: Any) -> None:
        keyed.seed_all("lightning", self.seed, trainer.global_rank, *where)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._seed(trainer, "epoch", trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._seed(trainer, "batch", trainer.current_epoch, batch_idx)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._seed(trainer, "validation", trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._seed(trainer, "end", trainer.current_epoch)
