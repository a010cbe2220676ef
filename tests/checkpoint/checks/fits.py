"""Trainings, loaders and loops that a checkpoint does not fit."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from repro_env import checkpoint
from repro_env.checkpoint import Checkpoint, manifest
from tests.checkpoint.checks.common import fails, tiny
from tests.checkpoint.operations import in_child


def another_training_is_refused(folder: Path) -> None:
    model, optimizer = tiny()
    training = Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False)
    path = Path(training.save())
    fails(Checkpoint(folder / "c", model=nn.Linear(4, 2), optimizer=optimizer, signals=False).resume, "does not fit model")
    fails(Checkpoint(folder / "c", model=model, other=optimizer, signals=False).resume, "holds no part 'other'")
    fails(Checkpoint(folder / "c", model=optimizer, signals=False).resume, "of another kind")
    fails(lambda: Checkpoint(folder / "c", model=3), "model", "no state")
    fails(lambda: Checkpoint(folder / "c", best="loss"), "which end")
    facts = json.loads((path / "manifest.json").read_text())
    for change, said in (({"world": {"size": 2}}, "by 2 processes"), ({"schema": "repro-env/checkpoint/9"}, "checkpoint/9")):
        again = folder / f"again-{said[:3]}"
        again.mkdir()
        for name in facts["files"]:
            (again / name).write_bytes((path / name).read_bytes())
        manifest.write(str(again), facts | change)
        fails(lambda again=again: Checkpoint(folder / "x", model=model, signals=False).resume(again), said)  # type: ignore[misc]


def other_data_and_splits_are_refused(folder: Path) -> None:
    """Data at a new path, and additional data, are accepted."""
    model, _ = tiny()

    def training(run: dict[str, str] | None, **more: Any) -> Checkpoint:
        os.environ.pop("REPRO_ENV_RUN", None)
        if run is not None:
            os.environ.update({"REPRO_ENV_RUN": "run-1", "REPRO_ENV_DATA": json.dumps(run)})
        return Checkpoint(folder / "c", model=model, signals=False, **more)

    try:
        training({"/data": "sha256:aa"}, splits={"train": [1, 2]}, data={"labels": "v1"}).save()
        for run in ({"/data": "sha256:aa"}, {"/elsewhere": "sha256:aa", "/more": "sha256:bb"}):
            assert training(run).resume()
            assert training(run, splits={"train": [1, 2], "test": [3]}, data={"labels": "v1"}).resume()
        fails(training({"/data": "sha256:bb"}).resume, "data /data changed since")
        fails(training({}).resume, "data /data of the checkpoint is missing in this run")
        fails(training({"/data": "sha256:aa"}, splits={"train": [2, 1]}).resume, "splits train changed since")
        fails(training({"/data": "sha256:aa"}, data={"labels": "v2"}).resume, "data labels changed since")
        os.environ.pop("REPRO_ENV_DATA")
        assert training(None).resume(), "outside of a run, data are not compared"
    finally:
        for name in ("REPRO_ENV_RUN", "REPRO_ENV_DATA"):
            os.environ.pop(name, None)


def another_loader_is_refused(folder: Path) -> None:
    data = TensorDataset(torch.arange(12.0))
    model, optimizer = tiny()

    def one(loader: Any, **more: Any) -> None:
        training = Checkpoint(folder / "c", model=model, optimizer=optimizer, every=2, signals=False, **more)
        with training:
            for _ in training.epochs(1):
                for _batch in training.batches(loader):
                    training.step()
                    if training.steps == 3:
                        return

    one(DataLoader(data, batch_size=2))
    fails(lambda: one(DataLoader(data, batch_size=3)), "batch_size is 3 and was 2")
    fails(lambda: one(DataLoader(data, batch_size=2, num_workers=1)), "workers is 1 and was 0")
    fails(lambda: one(DataLoader(data, batch_size=2, shuffle=True)), "sampler")
    fails(lambda: one(checkpoint.loader(data, batch_size=2)), "kind is 'keyed'")
    fails(lambda: one(DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)), "persistent")
    fails(lambda: next(Checkpoint(folder / "new", signals=False).batches(iter([1, 2]))), "only once")


def a_loop_that_would_not_be_exact_is_an_error(folder: Path) -> None:
    model, _ = tiny()
    training = Checkpoint(folder / "c", model=model, signals=False)
    loader = [1, 2, 3]
    epochs = training.epochs(2)
    next(epochs)
    for _ in training.batches(loader):
        fails(lambda: next(training.batches(loader)), "called before")
    fails(training.save, "not over", "metrics")
    fails(lambda: next(training.batches(loader)), "called before")


def what_is_sharded_is_refused(folder: Path) -> None:
    """FSDP in both of its forms, and ZeRO, on a real group of one; also a model that is sharded after the beginning."""

    def work() -> str:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/store")
        flat = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
        zero = ZeroRedundancyOptimizer(nn.Linear(3, 3).parameters(), torch.optim.Adam)
        later = nn.Linear(4, 4)
        training = Checkpoint(folder / "c", model=later, signals=False)
        fully_shard(later, mesh=init_device_mesh("cpu", (1,)))
        steps = torch.optim.Adam(flat.parameters())
        for part in (flat, nn.Sequential(flat), steps, zero, later, torch.optim.Adam(later.parameters())):
            fails(lambda part=part: Checkpoint(folder / "c", part=part, signals=False), "sharded", "torch.distributed.checkpoint")  # type: ignore[misc]
        fails(training.save, "model", "sharded")
        return "refused"

    assert in_child(work) == (0, "refused")


def a_part_that_is_left_behind_is_told(folder: Path) -> None:
    model, optimizer = tiny()
    Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False).save()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Checkpoint(folder / "c", model=model, signals=False).resume()
    assert ["optimizer" in str(one.message) for one in said] == [True]


def one_of_another_version_is_not_passed_over(folder: Path) -> None:
    """An older one lies beside it: going on from there would throw away what was done since."""
    model, _ = tiny()
    training = Checkpoint(folder / "c", model=model, signals=False)
    training.save()
    path = Path(training.save())
    facts = json.loads((path / "manifest.json").read_text())
    for name in ("manifest.json", "SHA256SUMS"):
        (path / name).unlink()
    manifest.write(str(path), facts | {"schema": "repro-env/checkpoint/9"})
    fails(Checkpoint(folder / "c", model=model, signals=False).resume, "checkpoint/9", "the version of repro-env that wrote it")


def what_cannot_be_meant_is_told_at_the_beginning(folder: Path) -> None:
    model, _ = tiny()
    for wrong, said in (
        ({"every": 0}, "every=0"),
        ({"every": 0.5}, "every=0.5"),
        ({"keep": 0}, "keep=0"),
        ({"recipe": object()}, "recipe: cannot be written as JSON"),
        ({"data": {"train": float("nan")}}, "data: cannot be written as JSON"),
        (
            {"splits": {"train": range(9), "val": [9], "test": torch.tensor([10, 3, 7])}},
            "'train' and 'test' overlap: both hold 3, 7 (",
        ),
        ({"splits": {"a": range(9), "b": map(str, range(9))}}, "both hold 0, 1, 2, 3, 4 and 4 more"),
        ({"scheduler": None}, "scheduler: a NoneType has no state"),
        ({"weights": model.state_dict()}, "weights: a OrderedDict has no state"),
    ):
        fails(lambda wrong=wrong: Checkpoint(folder / "c", model=model, signals=False, **wrong), said)  # type: ignore[misc]
    training = Checkpoint(folder / "c", model=model, signals=False)
    for metric in ("low", None, torch.ones(2), [1]):
        fails(lambda metric=metric: training.step(loss=metric), "the metric loss", "is no number")  # type: ignore[misc]
    training.save()
    fails(lambda: checkpoint.load(folder / "c", best="loss:min", model=model), "loss:min", "metrics(")
