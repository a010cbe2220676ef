"""A small training that uses everything that a checkpoint must save. The tests run it, kill it and start it again.

At the end it prints the sha256 of the weights of the model and of their average.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from repro_env import checkpoint


class Digits(Dataset):  # type: ignore[misc]
    """Pictures that are shifted, mirrored and made noisy with all three global generators."""

    def __init__(self, count: int) -> None:
        fixed = torch.Generator().manual_seed(5)
        self.pictures = torch.randn(count, 1, 8, 8, generator=fixed)
        self.labels = torch.randint(0, 4, (count,), generator=fixed)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.pictures[index]
        if random.random() < 0.5:
            picture = picture.flip(-1)
        picture = torch.roll(picture, int(np.random.randint(-1, 2)), dims=-2)
        return picture + 0.1 * torch.randn(picture.shape), self.labels[index]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(6 * 64, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


def digest(*modules: nn.Module) -> str:
    hasher = hashlib.sha256()
    for module in modules:
        for name, value in module.state_dict().items():
            hasher.update(name.encode())
            hasher.update(value.detach().contiguous().numpy().tobytes())
    return hasher.hexdigest()


def loader_of(kind: str, workers: int, start: str, dataset: Digits) -> Any:
    method = start if workers else None
    if kind == "keyed":
        return checkpoint.loader(dataset, batch_size=16, seed=3, num_workers=workers, multiprocessing_context=method)
    if kind == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(dataset, batch_size=16, shuffle=True, num_workers=workers, multiprocessing_context=method)
    generator = torch.Generator().manual_seed(9) if kind == "generator" else None
    return DataLoader(
        dataset, batch_size=16, shuffle=True, num_workers=workers, multiprocessing_context=method, generator=generator
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--loader", default="keyed")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--start", default="fork")
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--die-at", type=int, default=0, help="the number of the step after which to kill this process")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = loader_of(options.loader, options.workers, options.start, Digits(options.count))
    total = options.epochs * (options.count // 16)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=total)
    noise = np.random.default_rng(4)
    training = checkpoint.Checkpoint(
        options.directory,
        model=model,
        average=average,
        optimizer=optimizer,
        scheduler=scheduler,
        noise=noise,
        every=options.every,
        best="loss:min",
    )
    training.values["seen"] = 0
    for epoch in training.epochs(options.epochs):
        model.train()
        loss = torch.zeros(())
        for pictures, labels in training.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures + 0.01 * float(noise.random())), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            training.values["seen"] += len(labels)
            training.step(loss=loss.item())
            print(training.steps, flush=True)
            if training.steps == options.die_at:
                os.kill(os.getpid(), 9)
        model.eval()
        training.metrics(epoch=epoch, chance=random.random() + float(np.random.rand()) + float(torch.rand(())))
    print("final", digest(model, average), training.values["seen"], random.random(), np.random.rand(), float(torch.rand(())))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
