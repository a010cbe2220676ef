"""Make the checkpoints of Lightning exact, so that a training resumes bit for bit, also in the middle of an epoch.

Lightning saves weights, optimizers, schedulers and progress. Everything else is computed from the position in the training: the
random numbers of each batch by `ExactResume`, and the order and the samples by `repro_env.checkpoint.loader`.
"""

from __future__ import annotations

from typing import Any, Optional

from lightning.pytorch import Callback

from repro_env.checkpoint import keyed


class ExactResume(Callback):  # type: ignore[misc]
    """Seeds the global generators for each batch, epoch and validation. The default of `seed` is REPRO_ENV_SEED, or 0."""

    def __init__(self, seed: Optional[int] = None) -> None:
        self.seed = keyed.master_seed(seed)

    def _seed(self, trainer: Any, *where: Any) -> None:
        keyed.seed_all("lightning", self.seed, trainer.global_rank, *where)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        # Lightning does not restore the position of a loader that `estimated_stepping_batches` prepared before.
        trainer.fit_loop._load_combined_loader_states()  # noqa: SLF001

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._seed(trainer, "epoch", trainer.current_epoch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        self._seed(trainer, "batch", trainer.current_epoch, batch_idx)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._seed(trainer, "validation", trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        self._seed(trainer, "end", trainer.current_epoch)
