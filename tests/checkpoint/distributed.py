"""Ranks on gloo under torchrun: DistributedDataParallel, BatchNorm with means of each rank's own, random numbers of each rank's own.

DIR alone: checks with two ranks that are forked from here. DIR KIND DIE ASK, under torchrun: dies (all ranks) after DIE steps, 0
for never. The last rank is sent USR1 before step ASK. Rank 0 prints the sha256 of the weights.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import socket
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from repro_env import checkpoint
from tests.checkpoint.operations import begin, end
from tests.checkpoint.training import Digits, digest, network

_KEPT: list[Any] = []
"""Not freed before the process ends: torch 2.13 waits for gloo's thread then, with the lock of the interpreter in hand, for which
that thread may wait (seen as a process that never ends)."""


def uneven() -> nn.Module:
    """Layers of very different sizes, two of them used in the other order: several buckets, and none stays as it was."""

    class Uneven(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(7, 4)
            self.wide = nn.Linear(64, 150)
            self.body = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(150), nn.Dropout(0.2), nn.Linear(150, 7), nn.Tanh())

        def forward(self, pictures: Any) -> Any:
            return self.last(self.body(self.wide(pictures.flatten(1))))

    return Uneven()


def main(folder: str, kind: str, die: int, ask: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(100 + rank)
    torch.manual_seed(1)
    many = kind in ("buckets", "bare", "accumulated", "hooked")
    model = uneven() if many else network()
    torch.manual_seed(100 + rank)
    ranked = DistributedDataParallel(
        model,
        broadcast_buffers=kind != "own",
        find_unused_parameters=kind == "steady",
        bucket_cap_mb=0.002 if many else 25,
        gradient_as_bucket_view=kind == "bare",
    )
    _KEPT.append(ranked)
    if kind == "hooked":
        next(model.parameters()).register_hook(lambda gradient: gradient)
    optimizer = torch.optim.SGD(ranked.parameters(), lr=0.05, momentum=0.9)
    each = 3 if kind == "accumulated" else 1
    """Batches of a step."""
    dataset = Digits(96)
    loader: Any
    if many or kind in ("keyed", "steady"):
        loader = checkpoint.loader(dataset, batch_size=8, seed=2)
    else:
        loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, seed=4), num_workers=int(kind == "plain"))
    named = model if kind == "bare" else ranked
    training = checkpoint.Checkpoint(folder, model=named, optimizer=optimizer, every=2)
    for _ in training.epochs(3):
        for pictures, labels in training.batches(loader):
            over = (training.steps + 1) % each == 0
            with contextlib.nullcontext() if over else ranked.no_sync():
                nn.functional.cross_entropy(ranked(pictures), labels).backward()
            if over:
                optimizer.step()
                optimizer.zero_grad()
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


def ranks(folder: str, kind: str, die: int, ask: int, size: int) -> list[tuple[int, str]]:
    """As torchrun would start them, but forked from this process."""

    def one(rank: int) -> str:
        where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ.update(where)
        out, sys.stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                main(folder, kind, die, ask)
            except SystemExit as left:
                return f"ended {left.code}"
        return out.getvalue()

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [end(*one) for one in [begin(partial(one, rank)) for rank in range(size)]]


def checks(root: str) -> None:
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once
    whole = ranks(f"{root}/whole", "own", 0, 0, 2)
    assert whole[0][1].startswith("final "), whole
    asked = ranks(f"{root}/cut", "own", 0, 9, 2)
    assert asked == [(0, f"ended {128 + signal.SIGUSR1}")] * 2, asked
    killed = ranks(f"{root}/cut", "own", 15, 0, 2)
    assert [code for code, _ in killed] == [-signal.SIGKILL] * 2, killed
    assert ranks(f"{root}/cut", "own", 0, 0, 2) == whole


if __name__ == "__main__":
    if len(sys.argv) == 2:
        checks(sys.argv[1])
    else:
        code = 0
        try:
            main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        except SystemExit as told:
            code = int(str(told.code))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
