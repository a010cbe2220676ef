"""Gradients of an accumulation at the time of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro_env.checkpoint import Checkpoint
from repro_env.checkpoint import accelerate as of_accelerate
from repro_env.checkpoint.gradients import Gradients
from tests.checkpoint.checks.common import fails, step_on, tiny


def an_accumulation_resumes_after_any_micro_batch(directory: Path) -> None:
    """Stopped after each number of micro-batches; there are three in a step."""

    def train(name: str, until: int) -> list[Any]:
        torch.manual_seed(1)
        model, optimizer = tiny()
        model = nn.Sequential(model, nn.Dropout(0.5))
        with Checkpoint(directory / name, model=model, optimizer=optimizer, every=1, signals=False) as training:
            training.resume()
            while training.steps < until:
                model(torch.randn(4, 3)).square().mean().backward()
                if (training.steps + 1) % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=training.steps % 2 == 0)
                training.step()
        return [value.tolist() for value in model.state_dict().values()]

    expected = train("complete", 9)
    for steps in range(1, 9):
        train(str(steps), steps)
        assert train(str(steps), 9) == expected, steps


def used_gradients_are_not_saved(_: Path) -> None:
    model, optimizer = tiny()
    gradients = Gradients({"model": model, "optimizer": optimizer})
    assert not gradients.unused()
    model(torch.randn(4, 3)).sum().backward()
    assert sorted(gradients.unused()) == ["model.bias", "model.weight"]
    optimizer.step()
    assert not gradients.unused()
    model(torch.randn(4, 3)).sum().backward()  # added to the used gradient
    assert len(gradients.unused()) == 2
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()  # a new tensor, possibly at the same address
    assert len(gradients.unused()) == 2
    step_on(model, optimizer)
    assert not gradients.unused()


def gradients_without_an_optimizer_are_saved(directory: Path) -> None:
    """If the optimizer is not a part, it is unknown whether its gradients were used."""
    model, optimizer = tiny()
    gradients = Gradients({"model": model})
    step_on(model, optimizer)
    assert len(gradients.unused()) == 2
    parameter = torch.nn.Parameter(torch.ones(2))
    training = Checkpoint(directory / "c", optimizer=torch.optim.SGD([parameter], 0.1), signals=False)
    parameter.sum().backward()
    training.save()
    parameter.grad = None
    training.resume()
    assert parameter.grad.tolist() == [1, 1]
    other = Checkpoint(directory / "c", optimizer=torch.optim.SGD([parameter], 0.1), signals=False)
    fails(
        lambda: other._gradients.restore({"model.weight": torch.ones(2)}),
        "gradient of model.weight",
        "not a parameter of the model",
    )


def an_accumulation_of_accelerate_resumes_after_any_micro_batch(directory: Path) -> None:
    """accelerate counts the micro-batches itself, and its optimizer steps only after the last micro-batch."""
    from accelerate import Accelerator

    def train(name: str, until: int) -> list[Any]:
        torch.manual_seed(1)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
        model, optimizer = accelerator.prepare(*tiny())
        with of_accelerate.checkpoint(
            accelerator, directory / name, model=model, optimizer=optimizer, every=1, signals=False
        ) as training:
            training.resume()
            while training.steps < until:
                with accelerator.accumulate(model):
                    accelerator.backward(model(torch.randn(4, 3)).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                training.step()
        return [value.tolist() for value in model.state_dict().values()]

    expected = train("complete", 7)
    for steps in (1, 2, 3, 5):
        train(str(steps), steps)
        assert train(str(steps), 7) == expected, steps
