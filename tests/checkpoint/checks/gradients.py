"""Gradients of an accumulation that a checkpoint falls into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro_env.checkpoint import Checkpoint
from repro_env.checkpoint import accelerate as of_accelerate
from repro_env.checkpoint.gradients import Gradients
from tests.checkpoint.checks.common import fails, step_on, tiny


def an_accumulation_goes_on_in_its_middle(folder: Path) -> None:
    """Ended after each number of micro-batches; three make a step."""

    def train(name: str, until: int) -> list[Any]:
        torch.manual_seed(1)
        model, optimizer = tiny()
        model = nn.Sequential(model, nn.Dropout(0.5))
        with Checkpoint(folder / name, model=model, optimizer=optimizer, every=1, signals=False) as training:
            training.resume()
            while training.steps < until:
                model(torch.randn(4, 3)).square().mean().backward()
                if (training.steps + 1) % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=training.steps % 2 == 0)
                training.step()
        return [value.tolist() for value in model.state_dict().values()]

    whole = train("whole", 9)
    for cut in range(1, 9):
        train(str(cut), cut)
        assert train(str(cut), 9) == whole, cut


def used_gradients_are_not_kept(_: Path) -> None:
    model, optimizer = tiny()
    kept = Gradients({"model": model, "optimizer": optimizer})
    assert not kept.waiting()
    model(torch.randn(4, 3)).sum().backward()
    assert sorted(kept.waiting()) == ["model.bias", "model.weight"]
    optimizer.step()
    assert not kept.waiting()
    model(torch.randn(4, 3)).sum().backward()  # on top of what was used
    assert len(kept.waiting()) == 2
    optimizer.zero_grad()
    model(torch.randn(4, 3)).sum().backward()  # a new tensor, maybe where the old one was
    assert len(kept.waiting()) == 2
    step_on(model, optimizer)
    assert not kept.waiting()


def gradients_without_a_known_optimizer_are_kept(folder: Path) -> None:
    """By hand, or by an optimizer that is no part: nothing says that they were used."""
    model, optimizer = tiny()
    alone = Gradients({"model": model})
    step_on(model, optimizer)
    assert len(alone.waiting()) == 2
    loose = torch.nn.Parameter(torch.ones(2))
    training = Checkpoint(folder / "c", optimizer=torch.optim.SGD([loose], 0.1), signals=False)
    loose.sum().backward()
    training.save()
    loose.grad = None
    training.resume()
    assert loose.grad.tolist() == [1, 1]
    other = Checkpoint(folder / "c", optimizer=torch.optim.SGD([loose], 0.1), signals=False)
    fails(lambda: other._gradients.put_back({"model.weight": torch.ones(2)}), "model.weight", "no such parameter")


def an_accumulation_of_accelerate_goes_on_in_its_middle(folder: Path) -> None:
    """Its own count of micro-batches says when the optimizer steps, and its optimizer steps only then."""
    from accelerate import Accelerator

    def train(name: str, until: int) -> list[Any]:
        torch.manual_seed(1)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
        model, optimizer = accelerator.prepare(*tiny())
        with of_accelerate.checkpoint(
            accelerator, folder / name, model=model, optimizer=optimizer, every=1, signals=False
        ) as training:
            training.resume()
            while training.steps < until:
                with accelerator.accumulate(model):
                    accelerator.backward(model(torch.randn(4, 3)).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
                training.step()
        return [value.tolist() for value in model.state_dict().values()]

    whole = train("whole", 7)
    for cut in (1, 2, 3, 5):
        train(str(cut), cut)
        assert train(str(cut), 7) == whole, cut
