"""Ranks on gloo under torchrun: DistributedDataParallel, BatchNorm with means of each rank's own, random numbers of each rank's own.

DIR KIND DIE: dies (all ranks) after DIE steps, 0 for never. Rank 0 prints the sha256 of the weights.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from repro_env import checkpoint
from tests.checkpoint.training import Digits, digest, network


def main(folder: str, kind: str, die: int, ask: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(100 + rank)
    torch.manual_seed(1)
    model = network()
    torch.manual_seed(100 + rank)
    ranked = DistributedDataParallel(model, broadcast_buffers=kind != "own", find_unused_parameters=kind == "steady")
    optimizer = torch.optim.SGD(ranked.parameters(), lr=0.05, momentum=0.9)
    dataset = Digits(96)
    loader: Any
    if kind in ("keyed", "steady"):
        loader = checkpoint.loader(dataset, batch_size=8, seed=2)
    else:
        loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, seed=4), num_workers=1)
    training = checkpoint.Checkpoint(folder, model=ranked, optimizer=optimizer, every=2)
    for _ in training.epochs(3):
        for pictures, labels in training.batches(loader):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(ranked(pictures), labels).backward()
            optimizer.step()
            if training.steps + 1 == ask and rank == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            training.step()
            if training.steps == die:
                os.kill(os.getpid(), signal.SIGKILL)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (digest(model), random.random(), float(torch.rand(()))))
    if not rank:
        print("final", everyone, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
