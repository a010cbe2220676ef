"""Checks in one process with torch, NumPy, safetensors and torchdata: each function is one. Prints JSON: name -> traceback, or null."""

# Not run by pytest, and each check is told apart:
# ruff: noqa: PT017, BLE001

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from repro_env import checkpoint
from repro_env.checkpoint import Checkpoint, CheckpointError, CheckpointWarning, files, manifest, rng, values, weights


def fails(work: Callable[[], object], *said: str) -> None:
    try:
        work()
    except CheckpointError as error:
        for word in said:
            assert word in str(error), str(error)
    else:
        raise AssertionError(f"no error that says {said}")


def same(one: Any, other: Any) -> bool:
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


def through(value: Any) -> Any:
    box = io.BytesIO()
    torch.save(values.encode(value, "it"), box)
    box.seek(0)
    return values.decode(torch.load(box, weights_only=True))


def tiny() -> tuple[nn.Module, Any]:
    model = nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters())


def step_on(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()


# --- values


def any_state_comes_back_with_its_types(_: Path) -> None:
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
    assert same(value, through(value))


def a_view_does_not_bring_its_storage(_: Path) -> None:
    box = io.BytesIO()
    torch.save(values.encode(torch.zeros(1_000_000)[:3], "it"), box)
    assert len(box.getvalue()) < 10_000


def what_only_pickle_can_store_is_named(_: Path) -> None:
    fails(lambda: values.encode({"a": [1, Path("x")]}, "extra"), "extra['a'][1]", "Path", "state_dict")
    fails(lambda: values.encode(np.array([object()]), "extra"), "numpy")


# --- weights


def the_library_reads_what_we_write_and_we_what_it_writes(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    kinds = [getattr(torch, name[6:]) for name in weights._CODES]
    made = {f"t{index}": (torch.arange(7) % 2).to(kind).reshape(7, 1) for index, kind in enumerate(kinds)}
    made |= {"scalar": torch.tensor(3), "empty": torch.empty(0, 4), "turned": torch.randn(3, 5).t(), "ü": torch.randn(2)}
    files.write(str(folder / "ours"), weights.chunks(made, step=5))
    theirs = load_file(folder / "ours")
    assert set(theirs) == set(made)
    for name, value in made.items():
        assert theirs[name].dtype == value.dtype, name
        assert theirs[name].shape == value.shape, name
        assert (
            theirs[name].contiguous().view(torch.uint8).tolist() == value.contiguous().view(torch.uint8).tolist()
            if value.dim()
            else True
        )
    save_file({name: value.contiguous() for name, value in made.items()}, folder / "theirs")
    back = weights.parse(bytearray((folder / "theirs").read_bytes()), "theirs")
    assert all(torch.equal(back[name].float(), value.float()) for name, value in made.items())


def the_same_weights_are_the_same_bytes(folder: Path) -> None:
    model = nn.Linear(5, 5)
    one, two = ([bytes(part) for part in weights.chunks(model.state_dict(), step=1)] for _ in range(2))
    assert one == two


def tied_weights_are_written_once(folder: Path) -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    model[1].weight = model[0].weight
    data = bytearray(b"".join(bytes(part) for part in weights.chunks(model.state_dict(), step=1)))
    assert len(data) < 50 * 8 * 4 + 400
    other = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False))
    other.load_state_dict(weights.parse(data, "it"))
    assert torch.equal(other[1].weight, model[0].weight)


def a_bad_file_of_weights_is_an_error(_: Path) -> None:
    good = b"".join(bytes(part) for part in weights.chunks({"a": torch.ones(3)}, step=1))
    chance = random.Random(3)
    for size in (0, 4, 8, 20, len(good) - 1):
        fails(lambda size=size: weights.parse(bytearray(good[:size]), "it"), "it")  # type: ignore[misc]
    for _turn in range(300):
        data = bytearray(good)
        data[chance.randrange(0, len(good) - 12)] = chance.randrange(256)
        with contextlib.suppress(CheckpointError):
            weights.parse(data, "it")


def what_the_format_does_not_know_is_kept_too(folder: Path) -> None:
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
    Checkpoint(folder / "c", model=model, signals=False).save()
    other = Odd()
    other.complex.zero_()
    Checkpoint(folder / "c", model=other, signals=False).resume()
    assert other.extra == 7
    assert other.complex.item() == 1 + 2j


# --- folders


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


# --- what does not fit


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


def a_stateful_loader_says_what_it_forgets(folder: Path) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    model, _ = tiny()
    training = Checkpoint(folder / "c", model=model, signals=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in training.batches(StatefulDataLoader(TensorDataset(torch.arange(4.0)), num_workers=1)):
            pass
    assert any("random numbers of its workers" in str(one.message) for one in said)


# --- loaders, generators


def keyed_samples_do_not_depend_on_batches_or_ranks(folder: Path) -> None:
    class Noisy:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> tuple[int, float, float, float]:
            return index, random.random(), float(np.random.rand()), float(torch.rand(()))

    def epoch(number: int, **options: Any) -> dict[int, Any]:
        loader = checkpoint.loader(Noisy(), seed=4, collate_fn=list, **options)
        loader.sampler.begin(number)
        return {sample[0]: sample for batch in loader for sample in batch}

    state = rng.capture()
    first = epoch(0, batch_size=3)
    assert same(rng.capture()["python"], state["python"]), "the script's own generators moved"
    assert epoch(0, batch_size=4, num_workers=2) == first
    assert epoch(0, batch_size=4, num_workers=2, multiprocessing_context="fork", shuffle=False) == first
    assert len({sample[1] for sample in first.values()}) == 10
    second = epoch(1, batch_size=3)
    assert second != first
    # Persistent workers hold a copy of the dataset from the first epoch.
    loader = checkpoint.loader(Noisy(), seed=4, collate_fn=list, batch_size=5, num_workers=1, persistent_workers=True)
    for number, expected in ((0, first), (1, second)):
        loader.sampler.begin(number)
        assert {sample[0]: sample for batch in loader for sample in batch} == expected
    halves = [checkpoint.KeyedSampler(9, 4, rank=rank, size=2) for rank in range(2)]
    whole = halves[0].order(0)
    assert sorted(whole) == list(range(9))
    assert [int(key) for half in halves for key in half] == [*whole[0::2], *whole[1::2], whole[0]]
    assert [int(key) for key in checkpoint.KeyedSampler(9, 4, rank=1, size=2, drop_last=True)] == whole[1:8:2]
    assert checkpoint.KeyedSampler(9, 5).order(0) != whole


def generators_of_ones_own_come_back(folder: Path) -> None:
    own = {
        "python": random.Random(1),
        "numpy": np.random.default_rng(1),
        "old": np.random.RandomState(1),
        "torch_": torch.Generator(),
    }

    def draw() -> list[float]:
        return [
            own["python"].random(),
            own["numpy"].random(),
            own["old"].rand(),
            torch.rand((), generator=own["torch_"]).item(),
            random.random(),
            float(np.random.rand()),
            torch.rand(()).item(),
        ]

    training = Checkpoint(folder / "c", signals=False, **own)
    training.save()
    first = draw()
    again = Checkpoint(folder / "c", signals=False, **own)
    again.resume()
    assert draw() == first
    assert again.resume()
    assert draw() == first, "a second resume gives something else"


def gradient_scaler_and_schedulers_come_back(folder: Path) -> None:
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
    training = Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False, **schedulers)
    step_on(model, optimizer)
    for name, one in schedulers.items():
        if name != "scaler":
            one.step(1.0) if name == "plateau" else one.step()
    before = {name: one.state_dict() for name, one in training._parts.items() if name != "model"}
    kept = through(before)
    training.save()
    for _ in range(4):
        step_on(model, optimizer)
        schedulers["one"].step()
        schedulers["steps"].step()
    training.resume()
    after = {name: one.state_dict() for name, one in training._parts.items() if name != "model"}
    assert same(kept, through(after))


def the_manifest_says_where_it_came_from(folder: Path) -> None:
    model, _ = tiny()
    notes = folder / "notes"
    run = {"REPRO_ENV_RUN": "run-1", "REPRO_ENV_NOTES": str(notes), "REPRO_ENV_SEED": "7", "REPRO_ENV_IMAGE": "sha256:aa"}
    os.environ.update(run)
    try:
        training = Checkpoint(
            folder / "c",
            model=model,
            signals=False,
            data={"train": "sha256:bb"},
            splits={"train": [3, 1], "test": torch.tensor([3, 1])},
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
    assert (facts["run"], facts["image"], facts["seeds"]["master"], facts["data"]) == (
        "run-1",
        "sha256:aa",
        7,
        {"train": "sha256:bb"},
    )
    assert facts["splits"]["train"] == facts["splits"]["test"] == manifest.split(["3", "1"])
    assert (facts["recipe"], facts["metrics"], facts["parent"], facts["spec"]) == ({"crop": 4}, {"accuracy": 0.5}, None, None)
    parent = {"run": "run-1", "path": first.path, "sha256": first.sha256, "step": 0}
    assert second.facts["parent"] == parent
    assert json.loads(notes.read_text()) == {"resumed": parent}


# --- signals


def a_signal_saves_after_the_step_and_ends(folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        model, optimizer = tiny()
        training = Checkpoint(folder / str(int(number)), model=model, optimizer=optimizer)
        try:
            for _ in training.epochs(2):
                for _batch in training.batches(DataLoader(TensorDataset(torch.arange(6.0)), num_workers=1)):
                    if training.steps == 3:
                        os.kill(os.getpid(), number)
                    training.step()
        except SystemExit as end:
            assert end.code == 128 + number
        else:
            raise AssertionError("it went on")
        finally:
            training.close()
        assert [one.step for one in files.listed(training.folder)] == [4]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def a_signal_to_the_whole_group_finds_the_step_done(folder: Path) -> None:
    """Workers die of it: what was done before is saved nevertheless."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 99
        try:
            model, _ = tiny()
            training = Checkpoint(folder / "c", model=model)
            for _ in training.epochs(1):
                for _batch in training.batches(DataLoader(TensorDataset(torch.arange(40.0)), num_workers=2)):
                    training.step()
                    if training.steps == 3:
                        os.killpg(0, signal.SIGTERM)
        except SystemExit as end:
            code = int(str(end.code))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGTERM
    found = files.listed(str(folder / "c"))
    assert len(found) == 1
    assert found[0].step in range(3, 10)


def children_do_not_hear_for_us(folder: Path) -> None:
    import multiprocessing
    import time

    training = Checkpoint(folder / "c")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=time.sleep, args=(60,))
    child.start()
    assert child.pid
    os.kill(child.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert child.is_alive(), "USR1 ended a child"
    child.terminate()
    child.join(10)
    assert child.exitcode == -signal.SIGTERM
    training.close()


def threads_are_told_that_signals_are_not_heard(folder: Path) -> None:
    said: list[Any] = []

    def work() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Checkpoint(folder / "c")
        said.extend(caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert any("main thread" in str(one.message) for one in said)


CHECKS: tuple[Callable[[Path], None], ...] = (
    any_state_comes_back_with_its_types,
    a_view_does_not_bring_its_storage,
    what_only_pickle_can_store_is_named,
    the_library_reads_what_we_write_and_we_what_it_writes,
    the_same_weights_are_the_same_bytes,
    tied_weights_are_written_once,
    a_bad_file_of_weights_is_an_error,
    what_the_format_does_not_know_is_kept_too,
    a_flipped_byte_anywhere_is_found,
    nothing_there_is_a_beginning,
    the_last_and_the_best_stay,
    two_cannot_write,
    no_room_leaves_what_was_there,
    another_training_is_refused,
    another_loader_is_refused,
    a_loop_that_would_not_be_exact_is_an_error,
    a_stateful_loader_says_what_it_forgets,
    keyed_samples_do_not_depend_on_batches_or_ranks,
    generators_of_ones_own_come_back,
    gradient_scaler_and_schedulers_come_back,
    the_manifest_says_where_it_came_from,
    a_signal_saves_after_the_step_and_ends,
    a_signal_to_the_whole_group_finds_the_step_done,
    children_do_not_hear_for_us,
    threads_are_told_that_signals_are_not_heard,
)


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}
    for check in CHECKS:
        with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:
            try:
                check(Path(folder))
            except Exception:
                found[check.__name__] = traceback.format_exc()
            else:
                found[check.__name__] = None
    print(json.dumps(found))


if __name__ == "__main__":
    main()
