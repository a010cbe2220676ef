"""Kill a training after each checkpoint, resume it, and compare every batch and the weights with an uninterrupted training.

Arguments: a directory, the frameworks, and the combinations `step:workers:yes`, which mean killed after this step, with these
workers, with validation. Prints the combinations that differ as JSON. Each process is forked from this one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import accelerate
import numpy as np
import torch
import transformers
from lightning import pytorch as pl
from torch import nn

from repro_env import checkpoint
from repro_env.checkpoint import accelerate as of_accelerate
from repro_env.checkpoint import keyed
from repro_env.checkpoint import lightning as of_lightning
from repro_env.checkpoint import transformers as of_transformers
from tests.checkpoint.operations import in_child
from tests.checkpoint.training import digest

COUNT, BATCH, EPOCHS = 22, 4, 4
STEPS = 6
"""Batches of an epoch; the last one is smaller."""


class Case(NamedTuple):
    """A training. `last`: the step after whose checkpoint it is killed, or 0."""

    directory: str
    workers: int
    validates: bool
    last: int = 0

    def log(self, batch: Any) -> None:
        """Record a training batch: the indices, and everything that was drawn for its samples."""
        with Path(f"{self.directory}.batches").open("a") as file:
            file.write(f"{batch['index'].tolist()} {batch['inputs'].sum().item()!r}\n")

    def die(self, step: int) -> None:
        if step == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


class Samples(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples with noise of all three global generators."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.randn(4) + random.random() + float(np.random.rand())
        return {"inputs": noise + index / self.count, "labels": index % 3, "index": index}


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self, case: Case) -> None:
        super().__init__()
        keyed.seed_all("test")
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        self.case = case

    def forward(self, inputs: Any, labels: Any, index: Any) -> dict[str, Any]:
        if self.training:
            self.case.log({"inputs": inputs, "index": index})
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


def evaluate(model: Network, case: Case) -> None:
    """Validate, and draw random numbers as a script may do there."""
    if case.validates:
        model.eval()
        for batch in checkpoint.loader(Samples(8), batch_size=4, seed=5, num_workers=case.workers):
            model(**batch)
        torch.rand(3)
        model.train()


def by_loader(case: Case) -> str:
    """A loop of its own, with the position of the loader in its checkpoint."""
    model, first = Network(case), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = checkpoint.loader(Samples(), batch_size=BATCH, seed=2, num_workers=case.workers)
    steps, file = 0, Path(case.directory) / "state.pt"
    if file.exists():
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        steps, first = state["steps"], state["loader"]["epoch"]
    for epoch in range(first, EPOCHS):
        loader.sampler.set_epoch(epoch)
        assert len(loader) == STEPS
        for batch in loader:
            keyed.seed_all("test", steps)
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            steps += 1
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "steps": steps,
            }
            file.parent.mkdir(exist_ok=True)
            torch.save(state, file)
            case.die(steps)
        evaluate(model, case)
    return f"{steps} {digest(model)}"


def by_checkpoint(case: Case, plain: bool = False) -> str:
    model = Network(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": case.workers}
    loader = (
        torch.utils.data.DataLoader(Samples(), shuffle=True, **options)
        if plain
        else checkpoint.loader(Samples(), seed=2, **options)
    )
    training = checkpoint.Checkpoint(case.directory, model=model, optimizer=optimizer, every=1, each_epoch=case.last % 5 == 0)
    for _ in training.epochs(EPOCHS):
        for batch in training.batches(loader):
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            training.step()
            case.die(training.steps)
        evaluate(model, case)
    return f"{training.steps} {digest(model)}"


def by_replay(case: Case) -> str:
    return by_checkpoint(case, plain=True)


def by_accelerate(case: Case) -> str:
    accelerator = accelerate.Accelerator(cpu=True)
    model = Network(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS)
    loader = of_accelerate.loader(accelerator, Samples(), seed=2, batch_size=BATCH, num_workers=case.workers)
    wrapped, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    training = of_accelerate.checkpoint(
        accelerator, case.directory, model=wrapped, optimizer=optimizer, scheduler=scheduler, every=1
    )
    for _ in training.epochs(EPOCHS):
        assert len(loader) == STEPS
        for batch in training.batches(loader):
            optimizer.zero_grad()
            accelerator.backward(wrapped(**batch)["loss"])
            optimizer.step()
            scheduler.step()
            training.step()
            case.die(training.steps)
        evaluate(model, case)
    return f"{training.steps} {digest(model)}"


class Module(pl.LightningModule):  # type: ignore[misc]
    def __init__(self, case: Case, estimates: bool) -> None:
        super().__init__()
        self.network = Network(case)
        self.estimates = estimates

    def training_step(self, batch: Any, _index: int) -> Any:
        return self.network(**batch)["loss"]

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("loss", self.network(**batch)["loss"])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        # The estimate prepares the loader, before Lightning restores its position.
        steps = int(self.trainer.estimated_stepping_batches) if self.estimates else EPOCHS * STEPS
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Saver(pl.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Kills the process when the checkpoint is complete."""

    def __init__(self, case: Case) -> None:
        # After a validation or an epoch for each fifth kill point, otherwise after each step.
        self.case = case
        each = {} if case.last and case.last % 5 == 0 else {"every_n_train_steps": 1}
        super().__init__(dirpath=case.directory, save_top_k=-1, filename="{step}", **each)

    def _save_checkpoint(self, trainer: Any, path: str) -> None:
        super()._save_checkpoint(trainer, path)
        if trainer.global_step >= self.case.last > 0:
            os.kill(os.getpid(), signal.SIGKILL)


def by_lightning(case: Case, estimates: bool = False) -> str:
    module = Module(case, estimates)
    loader = checkpoint.loader(Samples(), batch_size=BATCH, seed=2, num_workers=case.workers)
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[of_lightning.ExactResume(seed=3), Saver(case)],
    )
    files = sorted(Path(case.directory).glob("*.ckpt"), key=os.path.getmtime) if Path(case.directory).exists() else []
    validation = checkpoint.loader(Samples(8), batch_size=4, num_workers=case.workers) if case.validates else None
    trainer.fit(module, loader, validation, ckpt_path=files[-1] if files else None, weights_only=False)
    assert trainer.num_training_batches == len(loader) == STEPS
    return f"{trainer.global_step} {digest(module)}"


def by_lightning_with_estimate(case: Case) -> str:
    return by_lightning(case, estimates=True)


class Ender(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, case: Case) -> None:
        self.case = case

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.case.die(state.global_step)


def by_transformers(case: Case) -> str:
    model = Network(case)
    arguments = transformers.TrainingArguments(
        output_dir=case.directory,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=3,
        eval_strategy="epoch" if case.validates else "no",
        dataloader_num_workers=case.workers,
        learning_rate=0.01,
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=checkpoint.Keyed(Samples(), seed=2),
        eval_dataset=Samples(8),
        callbacks=[of_transformers.ExactResume(), Ender(case)],
    )
    trainer.train(resume_from_checkpoint=of_transformers.last(case.directory))
    return f"{trainer.state.global_step} {digest(model)}"


def problem(work: Any, case: Case, expected: tuple[int, str], last: int) -> str:
    """Kill a training, resume it, and return how it differs from the uninterrupted one; empty if it does not."""
    killed = case._replace(directory=f"{case.directory}-{last}", last=last)
    status, _ = in_child(partial(work, killed))
    if status != -signal.SIGKILL:
        return f"was not killed, but ended with {status}"
    result = in_child(partial(work, killed._replace(last=0)))
    whole, found = (Path(f"{where.directory}.batches").read_text().splitlines() for where in (case, killed))
    shutil.rmtree(killed.directory)
    if found != whole:
        first = next(
            (number for number, pair in enumerate(zip(whole, found, strict=False)) if pair[0] != pair[1]),
            min(len(whole), len(found)),
        )
        return f"{len(found)} batches instead of {len(whole)}, the first different one is {first + 1}"
    return "" if result == expected else f"other weights: {result} instead of {expected}"


def main(root: str, frameworks: str, combinations: str) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # makes torch import everything here, once
    warnings.simplefilter("ignore")
    answer, sys.stdout = sys.stdout, Path(os.devnull).open("w")  # noqa: SIM115 - libraries print to it
    different, expected = [], {}
    for name, combination in itertools.product(frameworks.split(","), combinations.split(",")):
        last, workers, validates = combination.split(":")
        work = globals()[f"by_{name}"]
        case = Case(f"{root}/{name}-{workers}-{validates}", int(workers), validates == "yes")
        if case not in expected:
            expected[case] = in_child(partial(work, case))
            assert expected[case][0] == 0, (name, expected[case])
            assert expected[case][1].startswith(f"{EPOCHS * STEPS} "), (name, expected[case])
            shutil.rmtree(case.directory)
        if found := problem(work, case, expected[case], int(last)):
            different.append(f"{name}, killed after step {last}, {workers} workers, validation {validates}: {found}")
    print(json.dumps(different), file=answer, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
