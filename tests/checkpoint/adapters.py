"""Compare uninterrupted trainings with killed and resumed ones, for Lightning, Hugging Face Trainer and accelerate.

Each process is forked from this one, which has only imported modules. The data are augmented, in workers if there are any.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from lightning import pytorch as pl
from torch import nn

from repro_env import checkpoint
from repro_env.checkpoint import accelerate as of_accelerate
from repro_env.checkpoint import lightning as of_lightning
from repro_env.checkpoint import transformers as of_transformers
from tests.checkpoint.operations import in_child
from tests.checkpoint.training import Digits, digest, network

COUNT, BATCH, EPOCHS = 80, 16, 3
LAST_STEP = 8
"""The number of the step after which the process is killed, in the second epoch; an epoch has five steps."""


def new_network() -> nn.Module:
    torch.manual_seed(1)
    return network()


class Plain(pl.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.network = new_network()

    def training_step(self, batch: Any, _index: int) -> Any:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, _index: int) -> None:
        self.log("loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * COUNT // BATCH)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Killer(pl.Callback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def by_lightning(directory: str, workers: int, last: int) -> str:
    module = Plain()
    loader = checkpoint.loader(Digits(COUNT), batch_size=BATCH, seed=2, num_workers=workers)
    saver = pl.callbacks.ModelCheckpoint(dirpath=directory, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[of_lightning.ExactResume(seed=3), saver, Killer(last)],
    )
    latest = (
        sorted(Path(directory).glob("*.ckpt"), key=lambda path: int(path.stem.partition("=")[2]))
        if Path(directory).exists()
        else []
    )
    torch.rand(len(latest) + 1)  # a new process may have drawn other random numbers
    trainer.fit(module, loader, checkpoint.loader(Digits(16), batch_size=8), ckpt_path=latest[-1] if latest else None)
    return f"{trainer.global_step} {digest(module)}"


class Rows(Digits):
    def __getitem__(self, index: int) -> Any:
        picture, label = super().__getitem__(index)
        return {"picture": picture, "labels": label}


class Classifier(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.network = new_network()

    def forward(self, picture: Any, labels: Any) -> Any:
        logits = self.network(picture)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Ender(transformers.TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def by_transformers(directory: str, workers: int, last: int) -> str:
    model = Classifier()
    arguments = transformers.TrainingArguments(
        output_dir=directory,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=3,
        dataloader_num_workers=workers,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=checkpoint.Keyed(Rows(COUNT), seed=2),
        callbacks=[of_transformers.ExactResume(), Ender(last)],
    )
    latest = of_transformers.last(directory)
    if latest is not None:
        # A more recent checkpoint that is incomplete because of a kill.
        half = Path(directory) / "checkpoint-999"
        half.mkdir(exist_ok=True)
        (half / "trainer_state.json").write_text("{")
        assert of_transformers.last(directory) == latest
        (half / "trainer_state.json").unlink()
        half.rmdir()
    trainer.train(resume_from_checkpoint=latest)
    return f"{trainer.state.global_step} {digest(model)}"


def by_accelerate(directory: str, workers: int, last: int) -> str:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = new_network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    loader = of_accelerate.loader(accelerator, Digits(COUNT), seed=2, batch_size=BATCH, num_workers=workers)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    training = of_accelerate.checkpoint(accelerator, directory, model=model, optimizer=optimizer, scheduler=scheduler, every=2)
    for _ in training.epochs(EPOCHS):
        for pictures, labels in training.batches(loader):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(pictures), labels))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                training.step()
                if training.steps == last:
                    os.kill(os.getpid(), signal.SIGKILL)
    return f"{training.steps} {digest(model)}"


def main(root: str, numbers: str) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # makes torch import everything here, once
    warnings.simplefilter("ignore")
    for work, steps, last in ((by_lightning, 15, LAST_STEP), (by_transformers, 15, LAST_STEP), (by_accelerate, 9, 5)):
        for workers in map(int, numbers.split(",")):
            prefix = f"{root}/{work.__name__}-{workers}"
            expected = in_child(partial(work, f"{prefix}-complete", workers, 0))
            assert expected[0] == 0, (work, expected)
            assert expected[1].startswith(f"{steps} "), (work, expected)
            for step in (last, last + 3):
                killed = in_child(partial(work, f"{prefix}-killed", workers, step))
                assert killed[0] == -signal.SIGKILL, (work, killed)
            resumed = in_child(partial(work, f"{prefix}-killed", workers, 0))
            assert resumed == expected, (
                f"{work.__name__} with {workers} workers resumes with a different result: {resumed} {expected}"
            )
            print(work.__name__, workers, expected[1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
