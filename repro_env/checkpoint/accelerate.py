"""accelerate: `Checkpoint` with what `Accelerator.prepare` gave. Its own save_state is not used.

loader = accelerate.loader(accelerator, dataset, batch_size=32)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
training = accelerate.checkpoint(accelerator, "checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)
"""

from __future__ import annotations

import os
from typing import Any, Optional

from repro_env.checkpoint.keyed import Keyed, KeyedSampler
from repro_env.checkpoint.training import Checkpoint


def loader(
    accelerator: Any, dataset: Any, *, shuffle: bool = True, seed: Optional[int] = None, drop_last: bool = False, **others: Any
) -> Any:
    """As `repro_env.checkpoint.loader`, prepared: accelerate shares the batches out over the ranks."""
    from torch.utils.data import DataLoader

    chosen = int(os.environ.get("REPRO_ENV_SEED") or 0) if seed is None else seed
    sampler = KeyedSampler(len(dataset), chosen, shuffle=shuffle)
    return accelerator.prepare(DataLoader(Keyed(dataset, chosen), sampler=sampler, drop_last=drop_last, **others))


def checkpoint(accelerator: Any, folder: Any, **options: Any) -> Checkpoint:
    """A `Checkpoint` that also keeps the accelerator's gradient scaler and its place in an accumulation, where there are any."""
    scaler = getattr(accelerator, "scaler", None)
    if scaler is not None:
        options.setdefault("scaler", scaler)
    if getattr(accelerator, "gradient_accumulation_steps", 1) > 1:
        options.setdefault("accumulation", _Accumulation(accelerator))
    return Checkpoint(folder, **options)


class _Accumulation:
    """Which micro-batch is the next: `accumulate` counts them."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, int]:
        return {"step": int(self._accelerator.step)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._accelerator.step = state["step"]
