"""Helpers of the checks."""

# ruff: noqa: PT017

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from repro_env.checkpoint import CheckpointError, values


def fails(work: Callable[[], object], *words: str) -> None:
    """Check that `work` raises a `CheckpointError` whose text contains the words."""
    try:
        work()
    except CheckpointError as error:
        for word in words:
            assert word in str(error), str(error)
    else:
        raise AssertionError(f"no CheckpointError with {words}")


def same(one: Any, other: Any) -> bool:
    """Whether two values have the same types and the same content."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return bool(one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def round_trip(value: Any) -> Any:
    """Encode, save, load and decode a value."""
    buffer = io.BytesIO()
    torch.save(values.encode(value, "it"), buffer)
    buffer.seek(0)
    return values.decode(torch.load(buffer, weights_only=True))


def tiny() -> tuple[nn.Module, Any]:
    model = nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters())


def step_on(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
