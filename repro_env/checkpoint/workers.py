"""Random generators of a stateful loader's workers, as part of the state that the loader keeps of each worker.

torchdata's StatefulDataLoader keeps, with each batch, the state of its worker's copy of the dataset where that has one, and
seeds the generators of a new worker as those of the first epoch's beginning. So the copy in a worker is given a state: what
the generators were when that batch was made. The script's own process and its dataset are left as they are.
"""

from __future__ import annotations

from typing import Any, Optional

from repro_env.checkpoint import rng


def can_remember(loader: Any) -> bool:
    """Samples by index only: what an iterable dataset draws before its first sample is drawn again, after the state is back."""
    from torch.utils.data import IterableDataset

    known = any(kind.__module__.startswith("torchdata.stateful_dataloader") for kind in type(loader).__mro__)
    dataset = getattr(loader, "dataset", None)
    return known and hasattr(dataset, "__dict__") and not isinstance(dataset, IterableDataset)


def remember(loader: Any) -> None:
    """From its next iteration on."""
    if not isinstance(loader.worker_init_fn, Remembering):
        loader.worker_init_fn = Remembering(loader.worker_init_fn)


class Remembering:
    """What begins a worker; `own` is what the script wanted to begin it."""

    def __init__(self, own: Optional[Any]) -> None:
        self.own = own

    def __call__(self, worker: int) -> None:
        if self.own is not None:
            self.own(worker)
        from torch.utils.data import get_worker_info

        dataset = get_worker_info().dataset
        state: Any = getattr(dataset, "state_dict", None)
        load: Any = getattr(dataset, "load_state_dict", None)
        own = callable(state) and callable(load)

        def state_dict() -> dict[str, Any]:
            return {"repro-env": rng.pack(rng.capture()), "dataset": state() if own else None}

        def load_state_dict(kept: dict[str, Any]) -> None:
            if own:
                load(kept["dataset"])
            rng.restore(rng.unpack(kept["repro-env"]))

        dataset.state_dict, dataset.load_state_dict = state_dict, load_state_dict
