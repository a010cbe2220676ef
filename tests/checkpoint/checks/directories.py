"""Directories of checkpoints: damaged, empty, full, with two writers, and which checkpoints are kept."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from repro_env import checkpoint
from repro_env.checkpoint import Checkpoint, CheckpointError, CheckpointWarning, files, manifest
from tests.checkpoint.checks.common import fails, step_on, tiny
from tests.checkpoint.operations import in_child


def any_changed_byte_is_detected(directory: Path) -> None:
    model, optimizer = tiny()
    training = Checkpoint(directory / "c", model=model, optimizer=optimizer, signals=False)
    training.steps = 1
    first = training.save()
    step_on(model, optimizer)
    training.steps = 2
    last = Path(training.save())
    other = training
    chance = random.Random(1)
    for path in sorted(last.iterdir()):
        content = path.read_bytes()
        for offset in sorted({0, len(content) - 1, *(chance.randrange(len(content)) for _ in range(6))}):
            path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
            other = Checkpoint(directory / "c", model=tiny()[0], optimizer=tiny()[1], signals=False)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert other.resume()
            if path.name == "SHA256SUMS" and not caught:
                continue  # the line of another file, whose sha256 is also in the manifest
            assert other.steps == 1, (path.name, offset)
            assert any(issubclass(warning.category, CheckpointWarning) for warning in caught)
        path.write_bytes(content)
        path.rename(path.with_suffix(".gone"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.resume()
        assert other.steps == 1, path.name
        path.with_suffix(".gone").rename(path)
    other.resume()
    assert other.steps == 2
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=first, check=False)
    assert done.returncode == 0
    for path in (Path(first) / "manifest.json", last / "manifest.json"):
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fails(other.resume, "all 2 checkpoints are damaged")


def training_starts_without_a_checkpoint(directory: Path) -> None:
    model, _ = tiny()
    assert not Checkpoint(directory / "none", model=model, signals=False).resume()
    fails(lambda: checkpoint.load(directory / "none", model=model), "this path does not contain a checkpoint")


def the_last_and_the_best_checkpoint_are_kept(directory: Path) -> None:
    model, _ = tiny()
    training = Checkpoint(directory / "c", model=model, keep=2, best="loss:min", every=1, signals=False)
    for loss in (5.0, 1.0, float("nan"), 4.0, 3.0):
        training.step(loss=loss)
    assert [saved.step for saved in files.listed(training.directory)] == [5, 4, 2]
    found = checkpoint.load(training.directory, best="loss:min", model=model)
    assert found["step"] == 2
    assert checkpoint.load(training.directory, model=model)["step"] == 5
    training.close()
    every = Checkpoint(directory / "all", model=model, keep=None, every=1, signals=False)
    for _ in range(4):
        every.step()
    assert len(files.listed(every.directory)) == 4


def two_processes_cannot_write_at_once(directory: Path) -> None:
    model, _ = tiny()
    first = Checkpoint(directory / "c", model=model, signals=False)
    first.save()
    child = os.fork()
    if not child:
        code = 1
        try:
            Checkpoint(directory / "c", model=model, signals=False).save()
        except CheckpointError as error:
            code = 0 if "another process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    first.close()


def a_full_disk_keeps_previous_checkpoints(directory: Path) -> None:
    model, _ = tiny()
    training = Checkpoint(directory / "c", model=model, signals=False)
    training.save()
    original = os.write

    def full(fd: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    os.write = full
    try:
        fails(training.save, "cannot be written", "No space left")
    finally:
        os.write = original
    assert [path.name for path in sorted((directory / "c").iterdir())] == [".lock", "000001-step-0"]
    training.save()


def the_manifest_describes_the_origin(directory: Path) -> None:
    model, _ = tiny()
    reports = directory / "reports"
    run = {"REPRO_ENV_RUN": "run-1", "REPRO_ENV_REPORTS": str(reports), "REPRO_ENV_SEED": "7", "REPRO_ENV_IMAGE": "sha256:aa"}
    run["REPRO_ENV_DATA"] = json.dumps({"/data": "sha256:cc"})
    os.environ.update(run)
    try:
        training = Checkpoint(
            directory / "c",
            model=model,
            signals=False,
            data={"train": "sha256:bb"},
            splits={"train": [3, 1], "test": torch.tensor([4, 2])},
            recipe={"crop": 4},
        )
        first = manifest.read(training.save(accuracy=0.5))
        os.environ["REPRO_ENV_RUN"] = "run-2"
        other = Checkpoint(directory / "c", model=model, signals=False)
        other.resume()
        second = manifest.read(other.save())
    finally:
        for name in run:
            del os.environ[name]
    facts = first.facts
    assert (facts["run"], facts["image"], facts["seeds"]["master"]) == ("run-1", "sha256:aa", 7)
    assert facts["data"] == {"train": "sha256:bb", "/data": "sha256:cc"}
    assert facts["splits"] == manifest.splits({"train": ["3", "1"], "test": ["4", "2"]})
    assert (facts["recipe"], facts["metrics"], facts["parent"], facts["spec"]) == ({"crop": 4}, {"accuracy": 0.5}, None, None)
    parent = {"run": "run-1", "path": first.path, "sha256": first.sha256, "step": 0}
    assert second.facts["parent"] == parent
    assert json.loads(reports.read_text()) == {"resumed": parent}


def a_file_size_limit_keeps_previous_checkpoints(directory: Path) -> None:
    """The kernel enforces the limit, so that torch's own writer fails as well."""

    def work() -> str:
        model = torch.nn.Linear(300, 300)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model(torch.randn(2, 300)).sum().backward()
        optimizer.step()
        training = Checkpoint(directory / "c", model=model, optimizer=optimizer, signals=False)
        training.save()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit in (200, 100_000, 361_500):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            fails(training.save, "cannot be written", "previous checkpoints are intact")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return " ".join(path.name for path in sorted((directory / "c").iterdir()))

    assert in_child(work) == (0, ".lock 000001-step-0")


def an_unusable_directory_is_reported_before_the_training(directory: Path) -> None:
    (directory / "file").write_text("")
    model, _ = tiny()
    for path in (directory / "file", directory / "file" / "c"):
        fails(
            lambda path=path: next(Checkpoint(path, model=model, signals=False).epochs(1)),  # type: ignore[misc]
            str(path),
            "cannot be read",
            "give the directory",
        )
    (directory / "link").symlink_to("/proc/nothing")
    fails(
        lambda: next(Checkpoint(directory / "link", model=model, signals=False).epochs(1)),
        "cannot be written",
        "another directory",
    )


def a_rename_that_succeeded_without_an_answer_counts(directory: Path) -> None:
    """NFS may lose the answer to a rename. A rename that failed is an error."""
    model, _ = tiny()
    training = Checkpoint(directory / "c", model=model, signals=False)
    original: Any = os.rename

    def unanswered(old: Any, new: Any, **_: Any) -> None:
        original(old, new)
        raise FileNotFoundError(2, "No such file or directory")

    def failing(old: Any, new: Any, **_: Any) -> None:
        raise OSError(5, "Input/output error")

    try:
        os.rename = unanswered  # type: ignore[assignment]
        first = training.save()
        os.rename = failing  # type: ignore[assignment]
        fails(training.save, "Input/output error")
    finally:
        os.rename = original
    manifest.check(manifest.read(first))
    assert [path.name for path in sorted((directory / "c").iterdir())] == [".lock", "000001-step-0"]


def a_moved_directory_and_a_clock_set_back_are_supported(directory: Path) -> None:
    model, _ = tiny()
    original, now = time.monotonic, time.monotonic()
    with Checkpoint(directory / "c", model=model, seconds=10, signals=False) as training:
        training.step()
        time.monotonic = lambda: now - 1e6
        try:
            training.step()
            training.save()
        finally:
            time.monotonic = original
    (directory / "c").rename(directory / "d")
    other = Checkpoint(directory / "d", model=model, signals=False)
    assert other.resume()
    assert other.steps == 2
    assert Path(other.save()).name == "000002-step-2"
