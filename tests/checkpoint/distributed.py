"""A distributed training with gloo. Each rank has its own random numbers and its own means of BatchNorm.

With the argument DIR, checks are run with two forked ranks. With DIR KIND LAST INTERRUPT, under torchrun, all ranks are killed
after step LAST, and the last rank receives SIGUSR1 in step INTERRUPT; 0 means never. Rank 0 prints the sha256 of the weights.
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
from tests.checkpoint.operations import start_child, wait_for_child
from tests.checkpoint.training import Digits, digest, network

_REFERENCES: list[Any] = []
"""References that keep objects until the process ends. When torch 2.13 frees them, it can wait forever for gloo's thread, which
waits for the interpreter lock."""


def uneven() -> nn.Module:
    """Return layers of very different sizes, two of them used in reverse order: they need several buckets, which are all rebuilt."""

    class Uneven(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(7, 4)
            self.wide = nn.Linear(64, 150)
            self.body = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(150), nn.Dropout(0.2), nn.Linear(150, 7), nn.Tanh())

        def forward(self, pictures: Any) -> Any:
            return self.last(self.body(self.wide(pictures.flatten(1))))

    return Uneven()


def main(directory: str, kind: str, last: int, interrupt: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(100 + rank)
    torch.manual_seed(1)
    uses_buckets = kind in ("buckets", "bare", "accumulated", "hooked")
    model = uneven() if uses_buckets else network()
    torch.manual_seed(100 + rank)
    ranked = DistributedDataParallel(
        model,
        broadcast_buffers=kind != "own",
        find_unused_parameters=kind == "steady",
        bucket_cap_mb=0.002 if uses_buckets else 25,
        gradient_as_bucket_view=kind == "bare",
    )
    _REFERENCES.append(ranked)
    if kind == "hooked":
        next(model.parameters()).register_hook(lambda gradient: gradient)
    optimizer = torch.optim.SGD(ranked.parameters(), lr=0.05, momentum=0.9)
    batches = 3 if kind == "accumulated" else 1
    """Number of batches in a step."""
    dataset = Digits(96)
    loader: Any
    if uses_buckets or kind in ("keyed", "steady"):
        loader = checkpoint.loader(dataset, batch_size=8, seed=2)
    else:
        loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, seed=4), num_workers=int(kind == "plain"))
    part = model if kind == "bare" else ranked
    training = checkpoint.Checkpoint(directory, model=part, optimizer=optimizer, every=2)
    for _ in training.epochs(3):
        for pictures, labels in training.batches(loader):
            is_complete = (training.steps + 1) % batches == 0
            with contextlib.nullcontext() if is_complete else ranked.no_sync():
                nn.functional.cross_entropy(ranked(pictures), labels).backward()
            if is_complete:
                optimizer.step()
                optimizer.zero_grad()
            if training.steps + 1 == interrupt and rank == dist.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
            training.step()
            if training.steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, (digest(model), random.random(), float(torch.rand(()))))
    if not rank:
        print("final", states, flush=True)
    dist.destroy_process_group()


def ranks(directory: str, kind: str, last: int, interrupt: int, size: int) -> list[tuple[int, str]]:
    """Run the ranks in processes that are forked from this one."""

    def run_rank(rank: int) -> str:
        variables = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
        os.environ.update(variables)
        out, sys.stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out):
            try:
                main(directory, kind, last, interrupt)
            except SystemExit as exiting:
                return f"ended {exiting.code}"
        return out.getvalue()

    with socket.socket() as server:
        server.bind(("localhost", 0))
        port = server.getsockname()[1]
    return [wait_for_child(*child) for child in [start_child(partial(run_rank, rank)) for rank in range(size)]]


def checks(root: str) -> None:
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # makes torch import everything here, once
    expected = ranks(f"{root}/complete", "own", 0, 0, 2)
    assert expected[0][1].startswith("final "), expected
    interrupted = ranks(f"{root}/killed", "own", 0, 9, 2)
    assert interrupted == [(0, f"ended {128 + signal.SIGUSR1}")] * 2, interrupted
    killed = ranks(f"{root}/killed", "own", 15, 0, 2)
    assert [code for code, _ in killed] == [-signal.SIGKILL] * 2, killed
    assert ranks(f"{root}/killed", "own", 0, 0, 2) == expected


if __name__ == "__main__":
    if len(sys.argv) == 2:
        checks(sys.argv[1])
    else:
        code = 0
        try:
            main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        except SystemExit as exiting:
            code = int(str(exiting.code))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
