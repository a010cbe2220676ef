"""Keyed samples: the randomness of a sample depends only on (seed, epoch, index), and the order only on (seed, epoch).

A checkpoint therefore needs only the position. An epoch can resume at any batch without fetching the previous batches
again, and with any number of workers.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

from repro_env.checkpoint import ranks, rng


class Key(int):
    """An index with its epoch. A worker's copy of the dataset may be from an earlier epoch, so the index carries it."""

    epoch: int

    @classmethod
    def of(cls, index: int, epoch: int) -> Key:
        key = cls(index)
        key.epoch = epoch
        return key


class Keyed:
    """A dataset that seeds the global generators of Python, NumPy and torch for each sample.

    `dataset` must support indices. Generators that it creates itself are not seeded.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0
        """The epoch of indices that do not come from `KeyedSampler`."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int) -> Any:
        """Return a sample. A plain index belongs to the epoch `self.epoch`."""
        epoch, index = getattr(key, "epoch", self.epoch), int(key)
        import torch
        from torch.utils.data import get_worker_info

        # In the script's own process the generators must not change.
        state = rng.capture(cuda=False) if get_worker_info() is None else {}
        try:
            torch.default_generator.manual_seed(_seed_others("keyed", self.seed, epoch, index))
            return self.dataset[index]
        finally:
            rng.restore(state)


def seed_all(*key: Any) -> None:
    """Seed the global generators of Python, NumPy and torch (including CUDA) from a key."""
    import torch

    torch.manual_seed(_seed_others(*key))


def _seed_others(*key: Any) -> int:
    """Seed the generators of Python and NumPy if they are imported, and return the seed for torch, of 63 bits."""
    bits = hashlib.sha256("\0".join(("repro-env/keyed/1", *map(str, key))).encode()).digest()
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if random is not None:
        random.seed(int.from_bytes(bits[8:16], "little"))
    if numpy is not None:
        numpy.seed([int.from_bytes(bits[offset : offset + 4], "little") for offset in (16, 20, 24, 28)])
    return int.from_bytes(bits[:8], "little") >> 1


class KeyedSampler:
    """Yields the indices of a rank in an epoch.

    All ranks get the same number of indices. If the length is not divisible, the first indices are repeated, or with
    `drop_last` the last indices are dropped.
    """

    def __init__(
        self, length: int, seed: int, *, shuffle: bool = True, drop_last: bool = False, rank: int = 0, size: int = 1
    ) -> None:
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.size = size
        self.epoch = 0
        """The epoch of the next iteration. Frameworks set it through `set_epoch`."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, as in `torch.utils.data.DistributedSampler`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return (self.length if self.drop_last else self.length + self.size - 1) // self.size

    def __iter__(self) -> Iterator[Key]:
        """Yield the indices. The epoch is read with the first one, because frameworks may set it after calling this."""
        epoch = self.epoch
        order = self.order(epoch)
        for position in range(self.rank, len(self) * self.size, self.size) if order else ():
            yield Key.of(order[position % len(order)], epoch)

    def order(self, epoch: int) -> list[int]:
        """Return the order of all indices, for all ranks together."""
        if not self.shuffle:
            return list(range(self.length))
        import torch

        bits = hashlib.sha256(f"repro-env/order/1\0{self.seed}\0{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(bits[:8], "little") >> 1)
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order


def master_seed(seed: Optional[int]) -> int:
    """Return a seed that the script named, or else that of the run, or 0."""
    return int(os.environ.get("REPRO_ENV_SEED") or 0) if seed is None else seed


def loader(
    dataset: Any,
    *,
    shuffle: bool = True,
    seed: Optional[int] = None,
    drop_last: bool = False,
    **others: Any,
) -> Any:
    """Return a `torch.utils.data.DataLoader` with `Keyed` samples. `others`: its arguments (batch_size, num_workers, ...).

    The default of `seed` is the REPRO_ENV_SEED of a run, or 0. If `torch.distributed` is already initialized, the samples of
    an epoch are distributed to the ranks. `batch_size` is the size for each rank.
    """
    from repro_env.checkpoint.keyedloader import KeyedLoader

    seed = master_seed(seed)
    sampler = KeyedSampler(len(dataset), seed, shuffle=shuffle, drop_last=drop_last, rank=ranks.rank(), size=ranks.size())
    return KeyedLoader(Keyed(dataset, seed), sampler=sampler, drop_last=drop_last, **others)
