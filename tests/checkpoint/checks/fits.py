"""Trainings, loaders and loops that do not match a checkpoint."""

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


def a_different_training_is_refused(directory: Path) -> None:
    model, optimizer = tiny()
    training = Checkpoint(directory / "c", model=model, optimizer=optimizer, signals=False)
    path = Path(training.save())
    fails(
        Checkpoint(directory / "c", model=nn.Linear(4, 2), optimizer=optimizer, signals=False).resume,
        "the state of model in this checkpoint does not fit",
    )
    fails(Checkpoint(directory / "c", model=model, other=optimizer, signals=False).resume, "has no part 'other'")
    fails(Checkpoint(directory / "c", model=optimizer, signals=False).resume, "model is not a module, but was a module")
    fails(lambda: Checkpoint(directory / "c", model=3), "model", "no state")
    fails(lambda: Checkpoint(directory / "c", best="loss"), "NAME:min")
    facts = json.loads((path / "manifest.json").read_text())
    for change, text in (({"world": {"size": 2}}, "with 2 ranks"), ({"schema": "repro-env/checkpoint/9"}, "checkpoint/9")):
        copy = directory / f"copy-{text[-1]}"
        copy.mkdir()
        for name in facts["files"]:
            (copy / name).write_bytes((path / name).read_bytes())
        manifest.write(str(copy), facts | change)
        fails(lambda copy=copy: Checkpoint(directory / "x", model=model, signals=False).resume(copy), text)  # type: ignore[misc]


def different_data_and_splits_are_refused(directory: Path) -> None:
    """Data at a new path, and additional data, are accepted."""
    model, _ = tiny()

    def training(run: dict[str, str] | None, **options: Any) -> Checkpoint:
        os.environ.pop("REPRO_ENV_RUN", None)
        if run is not None:
            os.environ.update({"REPRO_ENV_RUN": "run-1", "REPRO_ENV_DATA": json.dumps(run)})
        return Checkpoint(directory / "c", model=model, signals=False, **options)

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
        assert training(None).resume(), "data are compared only in a run"
    finally:
        for name in ("REPRO_ENV_RUN", "REPRO_ENV_DATA"):
            os.environ.pop(name, None)


def a_different_loader_is_refused(directory: Path) -> None:
    data = TensorDataset(torch.arange(12.0))
    model, optimizer = tiny()

    def train(loader: Any, **options: Any) -> None:
        training = Checkpoint(directory / "c", model=model, optimizer=optimizer, every=2, signals=False, **options)
        with training:
            for _ in training.epochs(1):
                for _batch in training.batches(loader):
                    training.step()
                    if training.steps == 3:
                        return

    train(DataLoader(data, batch_size=2))
    fails(lambda: train(DataLoader(data, batch_size=3)), "batch_size is 3 but was 2")
    fails(lambda: train(DataLoader(data, batch_size=2, num_workers=1)), "workers is 1 but was 0")
    fails(lambda: train(DataLoader(data, batch_size=2, shuffle=True)), "sampler")
    fails(lambda: train(checkpoint.loader(data, batch_size=2)), "kind is 'keyed'")
    fails(lambda: train(DataLoader(data, batch_size=2, num_workers=1, persistent_workers=True)), "persistent")
    fails(lambda: next(Checkpoint(directory / "new", signals=False).batches(iter([1, 2]))), "only once")


def a_loop_that_cannot_resume_exactly_is_refused(directory: Path) -> None:
    model, _ = tiny()
    training = Checkpoint(directory / "c", model=model, signals=False)
    loader = [1, 2, 3]
    epochs = training.epochs(2)
    next(epochs)
    for _ in training.batches(loader):
        fails(lambda: next(training.batches(loader)), "already called in this epoch")
    fails(training.save, "between the last batch and the end of the epoch", "metrics")
    fails(lambda: next(training.batches(loader)), "already called in this epoch")


def sharded_parts_are_refused(directory: Path) -> None:
    """Both versions of FSDP, and ZeRO, in a process group with one rank; also a model that is sharded later."""

    def work() -> str:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{directory}/store")
        flat = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
        zero = ZeroRedundancyOptimizer(nn.Linear(3, 3).parameters(), torch.optim.Adam)
        later = nn.Linear(4, 4)
        training = Checkpoint(directory / "c", model=later, signals=False)
        fully_shard(later, mesh=init_device_mesh("cpu", (1,)))
        steps = torch.optim.Adam(flat.parameters())
        for part in (flat, nn.Sequential(flat), steps, zero, later, torch.optim.Adam(later.parameters())):
            texts = ("sharded", "torch.distributed.checkpoint")
            fails(lambda part=part: Checkpoint(directory / "c", part=part, signals=False), *texts)  # type: ignore[misc]
        fails(training.save, "model", "sharded")
        return "refused"

    assert in_child(work) == (0, "refused")


def a_part_that_is_not_restored_is_reported(directory: Path) -> None:
    model, optimizer = tiny()
    Checkpoint(directory / "c", model=model, optimizer=optimizer, signals=False).save()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Checkpoint(directory / "c", model=model, signals=False).resume()
    assert ["optimizer" in str(warning.message) for warning in caught] == [True]


def a_checkpoint_of_another_version_is_not_skipped(directory: Path) -> None:
    """Resuming from the older checkpoint would lose the steps since then."""
    model, _ = tiny()
    training = Checkpoint(directory / "c", model=model, signals=False)
    training.save()
    path = Path(training.save())
    facts = json.loads((path / "manifest.json").read_text())
    for name in ("manifest.json", "SHA256SUMS"):
        (path / name).unlink()
    manifest.write(str(path), facts | {"schema": "repro-env/checkpoint/9"})
    fails(
        Checkpoint(directory / "c", model=model, signals=False).resume, "checkpoint/9", "the version of repro-env that wrote it"
    )


def invalid_arguments_are_refused_at_once(directory: Path) -> None:
    model, _ = tiny()
    for options, text in (
        ({"every": 0}, "every=0"),
        ({"every": 0.5}, "every=0.5"),
        ({"keep": 0}, "keep=0"),
        ({"recipe": object()}, "recipe: this argument cannot be written as JSON"),
        ({"data": {"train": float("nan")}}, "data: this argument cannot be written as JSON"),
        (
            {"splits": {"train": range(9), "val": [9], "test": torch.tensor([10, 3, 7])}},
            "'train' and 'test' overlap: both hold 3, 7 (",
        ),
        ({"splits": {"a": range(9), "b": map(str, range(9))}}, "both hold 0, 1, 2, 3, 4 and 4 more"),
        ({"scheduler": None}, "scheduler: a NoneType has no state"),
        ({"weights": model.state_dict()}, "weights: a OrderedDict has no state"),
    ):
        fails(lambda options=options: Checkpoint(directory / "c", model=model, signals=False, **options), text)  # type: ignore[misc]
    training = Checkpoint(directory / "c", model=model, signals=False)
    for metric in ("low", None, torch.ones(2), [1]):
        fails(lambda metric=metric: training.step(loss=metric), "metric loss", "must be a single number")  # type: ignore[misc]
    training.save()
    fails(lambda: checkpoint.load(directory / "c", best="loss:min", model=model), "loss:min", "metrics(")
