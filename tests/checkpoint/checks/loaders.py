"""Positions of loaders."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from repro_env import checkpoint
from repro_env.checkpoint import Checkpoint, rng, workers
from tests.checkpoint.checks.common import fails, same


class Drawn:
    """Samples that are what the global generators say."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


class Stream(IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(range(4))


def a_stateful_loader_says_what_it_forgets(folder: Path) -> None:
    """Workers of an iterable dataset; those of one with indices remember (`test_each_kind_of_loader`)."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    training = Checkpoint(folder / "c", signals=False)
    for dataset, told in ((Stream(), True), (Drawn(), False)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in training.batches(StatefulDataLoader(dataset, num_workers=1)):
                pass
        assert any("random numbers of its workers" in str(one.message) for one in said) == told
    lasting = StatefulDataLoader(Drawn(), num_workers=1, persistent_workers=True)
    fails(lambda: next(training.batches(lasting)), "persistent workers")


def a_stateful_dataset_keeps_its_own_state_beside(_: Path) -> None:
    """And what the script wants to begin its workers with is called."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Counting(Drawn):
        count = 0

        def __getitem__(self, index: int) -> Any:
            self.count += 1
            return (self.count, *super().__getitem__(index))

        def state_dict(self) -> Any:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    def begin(worker: int) -> None:
        random.seed(70 + worker)

    def loader() -> Any:
        torch.manual_seed(4)
        made = StatefulDataLoader(
            Counting(), num_workers=1, collate_fn=list, worker_init_fn=begin, multiprocessing_context="fork"
        )
        workers.remember(made)
        workers.remember(made)
        return made

    one, other, batches, state = loader(), loader(), [], None
    for batch in one:
        batches.append(batch)
        if len(batches) == 4:
            state = one.state_dict()
    other.load_state_dict(state)
    assert list(other) == batches[4:]
    assert batches[0][0][2] == random.Random(70).random()


def keyed_samples_are_others_in_each_epoch_of_any_loader(folder: Path) -> None:
    training = Checkpoint(folder / "c", signals=False, each_epoch=False)
    dataset = checkpoint.Keyed(Drawn(), seed=2)
    epochs = [list(training.batches(DataLoader(dataset, num_workers=count, collate_fn=list))) for count in (0, 1, 0)]
    assert [[sample[0] for (sample,) in epoch] for epoch in epochs] == [list(range(10))] * 3
    assert len({sample[1] for epoch in epochs for (sample,) in epoch}) == 30


def keyed_samples_do_not_depend_on_batches_or_ranks(folder: Path) -> None:
    def epoch(number: int, **options: Any) -> dict[int, Any]:
        loader = checkpoint.loader(Drawn(), seed=4, collate_fn=list, **options)
        loader.sampler.begin(number)
        return {sample[0]: sample for batch in loader for sample in batch}

    state = rng.capture()
    first = epoch(0, batch_size=3)
    assert same(rng.capture()["python"], state["python"]), "the script's own generators moved"
    assert epoch(0, batch_size=4, num_workers=2) == first
    assert epoch(0, batch_size=4, num_workers=2, multiprocessing_context="fork", shuffle=False) == first
    assert len({sample[1] for sample in first.values()}) == 10
    second = epoch(1, batch_size=3)
    assert second != first
    # Persistent workers hold a copy of the dataset from the first epoch.
    loader = checkpoint.loader(Drawn(), seed=4, collate_fn=list, batch_size=5, num_workers=1, persistent_workers=True)
    for number, expected in ((0, first), (1, second)):
        loader.sampler.begin(number)
        assert {sample[0]: sample for batch in loader for sample in batch} == expected
    halves = [checkpoint.KeyedSampler(9, 4, rank=rank, size=2) for rank in range(2)]
    whole = halves[0].order(0)
    assert sorted(whole) == list(range(9))
    assert [int(key) for half in halves for key in half] == [*whole[0::2], *whole[1::2], whole[0]]
    assert [int(key) for key in checkpoint.KeyedSampler(9, 4, rank=1, size=2, drop_last=True)] == whole[1:8:2]
    assert checkpoint.KeyedSampler(9, 5).order(0) != whole
