"""Positions of loaders."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from repro_env import checkpoint
from repro_env.checkpoint import Checkpoint, rng
from tests.checkpoint.checks.common import fails, same


class RandomSamples:
    """Samples that are drawn from the global generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


class PositionLoader:
    """A loader with workers and a position, but without the generators of its workers."""

    num_workers = 1

    def __iter__(self) -> Any:
        return iter(range(4))

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Do nothing: the position is not used."""


def a_stateful_loader_without_worker_state_causes_a_warning(directory: Path) -> None:
    """StatefulDataLoader with workers is replayed instead (see `test_each_kind_of_loader_resumes`)."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    training = Checkpoint(directory / "c", signals=False)
    for loader, expected in ((PositionLoader(), True), (StatefulDataLoader(RandomSamples(), num_workers=1), False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in training.batches(loader):
                pass
        assert any("random generators of its workers" in str(warning.message) for warning in caught) == expected
    persistent = StatefulDataLoader(RandomSamples(), num_workers=1, persistent_workers=True)
    fails(lambda: next(training.batches(persistent)), "persistent workers")


def keyed_samples_differ_between_epochs_with_any_loader(directory: Path) -> None:
    training = Checkpoint(directory / "c", signals=False, each_epoch=False)
    dataset = checkpoint.Keyed(RandomSamples(), seed=2)
    epochs = [list(training.batches(DataLoader(dataset, num_workers=count, collate_fn=list))) for count in (0, 1, 0)]
    assert [[sample[0] for (sample,) in epoch] for epoch in epochs] == [list(range(10))] * 3
    assert len({sample[1] for epoch in epochs for (sample,) in epoch}) == 30


def keyed_samples_do_not_depend_on_batches_or_ranks(directory: Path) -> None:
    def epoch(number: int, **options: Any) -> dict[int, Any]:
        loader = checkpoint.loader(RandomSamples(), seed=4, collate_fn=list, **options)
        loader.sampler.set_epoch(number)
        return {sample[0]: sample for batch in loader for sample in batch}

    state = rng.capture()
    first = epoch(0, batch_size=3)
    assert same(rng.capture()["python"], state["python"]), "the generators of the script have changed"
    assert epoch(0, batch_size=4, num_workers=2) == first
    assert epoch(0, batch_size=4, num_workers=2, multiprocessing_context="fork", shuffle=False) == first
    assert len({sample[1] for sample in first.values()}) == 10
    second = epoch(1, batch_size=3)
    assert second != first
    # Persistent workers have a copy of the dataset from the first epoch.
    loader = checkpoint.loader(RandomSamples(), seed=4, collate_fn=list, batch_size=5, num_workers=1, persistent_workers=True)
    for number, expected in ((0, first), (1, second)):
        loader.sampler.set_epoch(number)
        assert {sample[0]: sample for batch in loader for sample in batch} == expected
    halves = [checkpoint.KeyedSampler(9, 4, rank=rank, size=2) for rank in range(2)]
    order = halves[0].order(0)
    assert sorted(order) == list(range(9))
    assert [int(key) for half in halves for key in half] == [*order[0::2], *order[1::2], order[0]]
    assert [int(key) for key in checkpoint.KeyedSampler(9, 4, rank=1, size=2, drop_last=True)] == order[1:8:2]
    assert checkpoint.KeyedSampler(9, 5).order(0) != order
