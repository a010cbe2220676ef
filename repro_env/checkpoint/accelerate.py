"""Use `Checkpoint` with Hugging Face accelerate, instead of its save_state.

loader = accelerate.loader(accelerator, dataset, batch_size=32)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
training = accelerate.checkpoint(accelerator, "checkpoints", model=model, optimizer=optimizer, scheduler=scheduler)
"""

from __future__ import annotations

from typing import Any, Optional

from repro_env.checkpoint.keyed import Keyed, KeyedSampler, master_seed
from repro_env.checkpoint.training import Checkpoint


def loader(
    accelerator: Any, dataset: Any, *, shuffle: bool = True, seed: Optional[int] = None, drop_last: bool = False, **others: Any
) -> Any:
    """Do the same as `repro_env.checkpoint.loader`, with the loader prepared: accelerate distributes the batches to the ranks."""
    from torch.utils.data import DataLoader

    seed = master_seed(seed)
    sampler = KeyedSampler(len(dataset), seed, shuffle=shuffle)
    return accelerator.prepare(DataLoader(Keyed(dataset, seed), sampler=sampler, drop_last=drop_last, **others))


def checkpoint(accelerator: Any, directory: Any, **options: Any) -> Checkpoint:
    """Create a `Checkpoint` that also saves the accelerator's gradient scaler and its position in a gradient accumulation."""
    scaler = getattr(accelerator, "scaler", None)
    if scaler is not None:
        options.setdefault("scaler", scaler)
    if getattr(accelerator, "gradient_accumulation_steps", 1) > 1:
        options.setdefault("accumulation", _Accumulation(accelerator))
    return Checkpoint(directory, **options)


class _Accumulation:
    """The number of the current micro-batch, which `Accelerator.accumulate` counts."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, int]:
        return {"step": int(self._accelerator.step)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._accelerator.step = state["step"]
