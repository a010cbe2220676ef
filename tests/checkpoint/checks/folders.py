"""Folders of checkpoints: damaged, empty, full, of two writers; which ones stay."""

from __future__ import annotations

import io
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
from tests.checkpoint.checks.strangers import replace
from tests.checkpoint.operations import in_child


def a_flipped_byte_anywhere_is_found(folder: Path) -> None:
    model, optimizer = tiny()
    training = Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False)
    training.steps = 1
    good = training.save()
    step_on(model, optimizer)
    training.steps = 2
    bad = Path(training.save())
    other = training
    chance = random.Random(1)
    for path in sorted(bad.iterdir()):
        whole = path.read_bytes()
        for at in sorted({0, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(6))}):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            other = Checkpoint(folder / "c", model=tiny()[0], optimizer=tiny()[1], signals=False)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                assert other.resume()
            if path.name == "SHA256SUMS" and not said:
                continue  # of another line: each file's sha256 is in the manifest as well
            assert other.steps == 1, (path.name, at)
            assert any(issubclass(one.category, CheckpointWarning) for one in said)
        path.write_bytes(whole)
        path.rename(path.with_suffix(".gone"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.resume()
        assert other.steps == 1, path.name
        path.with_suffix(".gone").rename(path)
    other.resume()
    assert other.steps == 2
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=good, check=False)
    assert done.returncode == 0
    for path in (Path(good) / "manifest.json", bad / "manifest.json"):
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fails(other.resume, "none of 2 checkpoints is whole")


def nothing_there_is_a_beginning(folder: Path) -> None:
    model, _ = tiny()
    assert not Checkpoint(folder / "none", model=model, signals=False).resume()
    fails(lambda: checkpoint.load(folder / "none", model=model), "no such checkpoint")


def the_last_and_the_best_stay(folder: Path) -> None:
    model, _ = tiny()
    training = Checkpoint(folder / "c", model=model, keep=2, best="loss:min", every=1, signals=False)
    for loss in (5.0, 1.0, float("nan"), 4.0, 3.0):
        training.step(loss=loss)
    assert [one.step for one in files.listed(training.folder)] == [5, 4, 2]
    found = checkpoint.load(training.folder, best="loss:min", model=model)
    assert found["step"] == 2
    assert checkpoint.load(training.folder, model=model)["step"] == 5
    training.close()
    every = Checkpoint(folder / "all", model=model, keep=None, every=1, signals=False)
    for _ in range(4):
        every.step()
    assert len(files.listed(every.folder)) == 4


def two_cannot_write(folder: Path) -> None:
    model, _ = tiny()
    first = Checkpoint(folder / "c", model=model, signals=False)
    first.save()
    child = os.fork()
    if not child:
        code = 1
        try:
            Checkpoint(folder / "c", model=model, signals=False).save()
        except CheckpointError as error:
            code = 0 if "another process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    first.close()


def no_room_leaves_what_was_there(folder: Path) -> None:
    model, _ = tiny()
    training = Checkpoint(folder / "c", model=model, signals=False)
    training.save()
    plain = os.write

    def full(fd: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    os.write = full
    try:
        fails(training.save, "cannot be written", "No space left")
    finally:
        os.write = plain
    assert [path.name for path in sorted((folder / "c").iterdir())] == [".lock", "000001-step-0"]
    training.save()


def the_manifest_says_where_it_came_from(folder: Path) -> None:
    model, _ = tiny()
    notes = folder / "notes"
    run = {"REPRO_ENV_RUN": "run-1", "REPRO_ENV_NOTES": str(notes), "REPRO_ENV_SEED": "7", "REPRO_ENV_IMAGE": "sha256:aa"}
    run["REPRO_ENV_DATA"] = json.dumps({"/data": "sha256:cc"})
    os.environ.update(run)
    try:
        training = Checkpoint(
            folder / "c",
            model=model,
            signals=False,
            data={"train": "sha256:bb"},
            splits={"train": [3, 1], "test": torch.tensor([4, 2])},
            recipe={"crop": 4},
        )
        first = manifest.read(training.save(accuracy=0.5))
        os.environ["REPRO_ENV_RUN"] = "run-2"
        other = Checkpoint(folder / "c", model=model, signals=False)
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
    assert json.loads(notes.read_text()) == {"resumed": parent}


def a_limit_in_the_middle_of_any_file_leaves_what_was_there(folder: Path) -> None:
    """A real one, of the size of files: torch's own writer meets it as well. It has to be told like any other."""

    def work() -> str:
        model = torch.nn.Linear(300, 300)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model(torch.randn(2, 300)).sum().backward()
        optimizer.step()
        training = Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False)
        training.save()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit in (200, 100_000, 361_500):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            fails(training.save, "cannot be written", "stay good")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return " ".join(path.name for path in sorted((folder / "c").iterdir()))

    assert in_child(work) == (0, ".lock 000001-step-0")


def a_folder_that_cannot_be_written_is_told_before_the_training(folder: Path) -> None:
    (folder / "file").write_text("")
    model, _ = tiny()
    for path, said in ((folder / "file", "cannot be read"), (folder / "file" / "c", "cannot be read")):
        fails(lambda path=path: next(Checkpoint(path, model=model, signals=False).epochs(1)), str(path), said, "give the folder")  # type: ignore[misc]
    (folder / "link").symlink_to("/proc/nothing")
    fails(lambda: next(Checkpoint(folder / "link", model=model, signals=False).epochs(1)), "cannot be written", "another folder")


def a_rename_that_was_done_and_not_answered_counts(folder: Path) -> None:
    """As NFS has it; and one that was not done is told."""
    model, _ = tiny()
    training = Checkpoint(folder / "c", model=model, signals=False)
    plain: Any = os.rename

    def unanswered(old: Any, new: Any, **_: Any) -> None:
        plain(old, new)
        raise FileNotFoundError(2, "No such file or directory")

    def failing(old: Any, new: Any, **_: Any) -> None:
        raise OSError(5, "Input/output error")

    try:
        os.rename = unanswered  # type: ignore[assignment]
        first = training.save()
        os.rename = failing  # type: ignore[assignment]
        fails(training.save, "Input/output error")
    finally:
        os.rename = plain
    manifest.check(manifest.read(first))
    assert [path.name for path in sorted((folder / "c").iterdir())] == [".lock", "000001-step-0"]


def a_folder_that_moved_and_a_clock_that_went_back_do_no_harm(folder: Path) -> None:
    model, _ = tiny()
    plain, now = time.monotonic, time.monotonic()
    with Checkpoint(folder / "c", model=model, seconds=10, signals=False) as training:
        training.step()
        time.monotonic = lambda: now - 1e6
        try:
            training.step()
            training.save()
        finally:
            time.monotonic = plain
    (folder / "c").rename(folder / "d")
    other = Checkpoint(folder / "d", model=model, signals=False)
    assert other.resume()
    assert other.steps == 2
    assert Path(other.save()).name == "000002-step-2"


def one_from_before_gradients_and_buckets_were_kept_is_gone_on_from(folder: Path) -> None:
    model, optimizer = tiny()
    path = Path(Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False).save())
    state, box = torch.load(path / "rank-0.pt", weights_only=True), io.BytesIO()
    torch.save({name: state[name] for name in ("rng", "loader", "buffers")}, box)
    replace(path, "rank-0.pt", box.getvalue())
    step_on(model, optimizer)
    assert Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False).resume()
    assert model.weight.grad is None
