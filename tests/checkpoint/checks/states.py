"""Values, weights and states of parts are saved and loaded."""

from __future__ import annotations

import collections
import contextlib
import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from repro_env.checkpoint import Checkpoint, CheckpointError, files, values, weights
from tests.checkpoint.checks.common import fails, round_trip, same, step_on, tiny


def all_supported_types_are_restored(_: Path) -> None:
    value = {
        "none": None,
        "big": 2**200,
        "float": -0.0,
        3: [1.5, (True, "text"), {"nested": b"bytes\0"}],
        (1, "key"): torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "set": {1, 2},
        "frozen": frozenset("a"),
        "ordered": collections.OrderedDict(b=1, a=2),
        "counter": collections.Counter({5: 2}),
        "array": np.arange(6, dtype=">i4").reshape(2, 3),
        "scalar": np.float64(0.1),
        "bool": np.bool_(True),
        "empty": np.zeros((0, 3)),
        "bytearray": bytearray(b""),
        "tensor": torch.randn(3).to(torch.bfloat16),
        "complex": 1j,
        "tagged": {"repro-env": "a key of ours", "x": 1},
        "random": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
    }
    assert same(value, round_trip(value))


def a_view_is_saved_without_its_storage(_: Path) -> None:
    buffer = io.BytesIO()
    torch.save(values.encode(torch.zeros(1_000_000)[:3], "it"), buffer)
    assert len(buffer.getvalue()) < 10_000


def an_unsupported_type_is_named(_: Path) -> None:
    fails(lambda: values.encode({"a": [1, Path("x")]}, "extra"), "extra['a'][1]", "Path", "state_dict")
    fails(lambda: values.encode(np.array([object()]), "extra"), "numpy")


def files_are_compatible_with_the_safetensors_library(directory: Path) -> None:
    from safetensors.torch import load_file, save_file

    kinds = [getattr(torch, name[6:]) for name in weights._CODES]
    tensors = {f"t{index}": (torch.arange(7) % 2).to(kind).reshape(7, 1) for index, kind in enumerate(kinds)}
    tensors |= {"scalar": torch.tensor(3), "empty": torch.empty(0, 4), "turned": torch.randn(3, 5).t(), "ü": torch.randn(2)}
    files.write(str(directory / "ours"), weights.chunks(tensors, step=5))
    theirs = load_file(directory / "ours")
    assert set(theirs) == set(tensors)
    for name, value in tensors.items():
        assert theirs[name].dtype == value.dtype, name
        assert theirs[name].shape == value.shape, name
        assert (
            theirs[name].contiguous().view(torch.uint8).tolist() == value.contiguous().view(torch.uint8).tolist()
            if value.dim()
            else True
        )
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / "theirs")
    back = weights.parse(bytearray((directory / "theirs").read_bytes()), "theirs")
    assert all(torch.equal(back[name].float(), value.float()) for name, value in tensors.items())


def the_same_weights_result_in_the_same_bytes(directory: Path) -> None:
    model = nn.Linear(5, 5)
    first, second = ([bytes(part) for part in weights.chunks(model.state_dict(), step=1)] for _ in range(2))
    assert first == second


def tied_weights_are_written_once(directory: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight
    data = bytearray(b"".join(bytes(part) for part in weights.chunks(model.state_dict(), step=1)))
    assert len(data) < 50 * 8 * 4 + 400
    other = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    other.load_state_dict(weights.parse(data, "it"))
    assert torch.equal(other[1].weight, model[0].weight)


def a_damaged_file_of_weights_is_an_error(_: Path) -> None:
    intact = b"".join(bytes(part) for part in weights.chunks({"a": torch.ones(3)}, step=1))
    chance = random.Random(3)
    for size in (0, 4, 8, 20, len(intact) - 1):
        fails(lambda size=size: weights.parse(bytearray(intact[:size]), "it"), "it")  # type: ignore[misc]
    for _turn in range(300):
        data = bytearray(intact)
        data[chance.randrange(0, len(intact) - 12)] = chance.randrange(256)
        with contextlib.suppress(CheckpointError):
            weights.parse(data, "it")


def state_without_a_safetensors_type_is_also_saved(directory: Path) -> None:
    class Odd(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("complex", torch.tensor([1 + 2j]))
            self.extra = 0

        def get_extra_state(self) -> Any:
            return {"extra": self.extra}

        def set_extra_state(self, state: Any) -> None:
            self.extra = state["extra"]

    model = Odd()
    model.extra = 7
    Checkpoint(directory / "c", model=model, signals=False).save()
    other = Odd()
    other.complex.zero_()
    Checkpoint(directory / "c", model=other, signals=False).resume()
    assert other.extra == 7
    assert other.complex.item() == 1 + 2j


def gradient_scaler_and_schedulers_are_restored(directory: Path) -> None:
    model, optimizer = tiny()
    kinds = torch.optim.lr_scheduler
    schedulers = {
        "one": kinds.OneCycleLR(optimizer, 0.1, total_steps=50),
        "steps": kinds.MultiStepLR(optimizer, [2, 4]),
        "plateau": kinds.ReduceLROnPlateau(optimizer),
        "cosine": kinds.CosineAnnealingWarmRestarts(optimizer, 3),
        "lambdas": kinds.LambdaLR(optimizer, lambda step: 0.9**step),
        "several": kinds.SequentialLR(optimizer, [kinds.ConstantLR(optimizer), kinds.ExponentialLR(optimizer, 0.9)], [3]),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
    }
    training = Checkpoint(directory / "c", model=model, optimizer=optimizer, signals=False, **schedulers)
    step_on(model, optimizer)
    for name, scheduler in schedulers.items():
        if name != "scaler":
            scheduler.step(1.0) if name == "plateau" else scheduler.step()
    before = {name: part.state_dict() for name, part in training._parts.items() if name != "model"}
    saved = round_trip(before)
    training.save()
    for _ in range(4):
        step_on(model, optimizer)
        schedulers["one"].step()
        schedulers["steps"].step()
    training.resume()
    after = {name: part.state_dict() for name, part in training._parts.items() if name != "model"}
    assert same(saved, round_trip(after))
