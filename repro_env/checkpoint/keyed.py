"""Samples whose randomness is a function of (seed, epoch, index), in an order that is one of (seed, epoch).

So nothing has to be remembered but a position: the epoch goes on at any batch, without fetching those before it again,
and with any number of workers.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Optional

from repro_env.checkpoint import ranks


class Key(int):
    """An index that knows its epoch, also in a worker that has a copy of the dataset from an earlier one."""

    epoch: int

    @classmethod
    def of(cls, index: int, epoch: int) -> Key:
        key = cls(index)
        key.epoch = epoch
        return key


class Keyed:
    """A dataset that seeds Python's, NumPy's and torch's global generators for each sample.

    `dataset` is one with indices. Generators that it holds or makes itself are its own affair.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0
        """Of indices that come from another sampler than `KeyedSampler`."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int) -> Any:
        """A plain index counts as one of the epoch that `epoch` says."""
        epoch, index = getattr(key, "epoch", self.epoch), int(key)
        import torch
        from torch.utils.data import get_worker_info

        random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
        before: Any = None
        if get_worker_info() is None:  # the script's own process: its generators are not ours to move
            before = (
                torch.get_rng_state(),
                random.getstate() if random else None,
                numpy.get_state(legacy=False) if numpy else None,
            )
        try:
            torch.default_generator.manual_seed(_seed_others("keyed", self.seed, epoch, index))
            return self.dataset[index]
        finally:
            if before is not None:
                torch.set_rng_state(before[0])
                if random is not None and before[1] is not None:
                    random.setstate(before[1])
                if numpy is not None and before[2] is not None:
                    numpy.set_state(before[2])


def seed_all(*key: Any) -> None:
    """Python's, NumPy's and torch's global generators (CUDA's too), each from the key."""
    import torch

    torch.manual_seed(_seed_others(*key))


def _seed_others(*key: Any) -> int:
    """Python's and NumPy's, as far as they were imported; the seed for torch, 63 bits."""
    bits = hashlib.sha256("\0".join(("repro-env/keyed/1", *map(str, key))).encode()).digest()
    random, numpy = sys.modules.get("random"), sys.modules.get("numpy.random")
    if random is not None:
        random.seed(int.from_bytes(bits[8:16], "little"))
    if numpy is not None:
        numpy.seed([int.from_bytes(bits[at : at + 4], "little") for at in (16, 20, 24, 28)])
    return int.from_bytes(bits[:8], "little") >> 1


class KeyedSampler:
    """Indices of one rank in one epoch, from any position on.

    Every rank gets as many: the first ones again where the length cannot be divided, or none of the rest with `drop_last`.
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
        """What the next iteration gives; frameworks set it through `set_epoch`."""
        self._skip = 0

    def begin(self, epoch: int, skip: int = 0) -> None:
        """What the next iteration gives: this epoch, without its first `skip` indices."""
        self.epoch = epoch
        self._skip = skip

    def set_epoch(self, epoch: int) -> None:
        """As `torch.utils.data.DistributedSampler` has it."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[Key]:
        order = self.order(self.epoch)
        mine = [order[at % len(order)] for at in range(self.rank, len(self) * self.size, self.size)] if order else []
        return iter([Key.of(index, self.epoch) for index in mine[self._skip :]])

    def order(self, epoch: int) -> list[int]:
        """Of all indices, over all ranks."""
        if not self.shuffle:
            return list(range(self.length))
        import torch

        bits = hashlib.sha256(f"repro-env/order/1\0{self.seed}\0{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(bits[:8], "little") >> 1)
        order: list[int] = torch.randperm(self.length, generator=generator).tolist()
        return order


def loader(
    dataset: Any,
    *,
    shuffle: bool = True,
    seed: Optional[int] = None,
    drop_last: bool = False,
    **others: Any,
) -> Any:
    """A `torch.utils.data.DataLoader` over `Keyed` samples; `others` are its own arguments (batch_size, num_workers, ...).

    `seed`: else REPRO_ENV_SEED, which a run has, else 0. Ranks share an epoch when `torch.distributed` was started
    before. Its `batch_size` is that of one rank.
    """
    from repro_env.checkpoint.keyedloader import KeyedLoader

    chosen = int(os.environ.get("REPRO_ENV_SEED") or 0) if seed is None else seed
    sampler = KeyedSampler(len(dataset), chosen, shuffle=shuffle, drop_last=drop_last, rank=ranks.rank(), size=ranks.size())
    return KeyedLoader(Keyed(dataset, chosen), sampler=sampler, drop_last=drop_last, **others)
