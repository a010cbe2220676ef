"""Traces of real training: PyTorch, and Lightning, transformers and ranks where they are at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.verify import divergence, trace
from repro_env.verify.trace import Trace
from tests.inside.test_seeds import SEEDS, python_with
from tests.parts import need

MANY = '''
"""Loops of every kind, each with an optimizer of its own; the numbers must not change by being traced."""
import hashlib, math, multiprocessing, os, sys
import torch
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
DATA, LABELS = torch.randn(64, 8), torch.randint(0, 3, (64,))


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))


def digest(params):
    each = [hashlib.sha256(f"{p.dtype} {tuple(p.shape)}\\n".encode() + bytes(p.detach().contiguous().view(torch.uint8).flatten().tolist())) for p in params]
    return hashlib.sha256(b"".join(one.digest() for one in each)).hexdigest()


def train(steps, change=lambda step, net, opt, batch: batch, order=None):
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, steps + 1):
        batch = change(step, net, opt, DATA)
        opt.zero_grad()
        F.cross_entropy(net(batch), LABELS).backward()
        opt.step()
    print("plain", step, digest(net.parameters()))
    return opt  # it stays alive to the end


def ulp(step, net, opt, batch):
    if step == 5:
        with torch.no_grad():
            weight = net[0].weight.view(-1)
            weight[0] = torch.nextafter(weight[0], torch.tensor(math.inf))
    return batch


def byte(step, net, opt, batch):
    if step == 3:
        batch = batch.clone()
        batch.view(torch.uint8)[0, 2] ^= 64
    return batch


def rate(step, net, opt, batch):
    if step == 4:
        opt.param_groups[0]["lr"] = 0.05
    return batch


def seed(step, net, opt, batch):
    if step == 1:
        torch.manual_seed(2)
        for one in net:
            getattr(one, "reset_parameters", int)()
    return batch


def other():
    """Two optimizers, a closure, accumulated gradients, no number, a loss of many, one without any, one that is gone."""
    left, right = model(), model()
    first, second = torch.optim.Adam(left.parameters()), torch.optim.AdamW(right.named_parameters())
    for _ in range(3):
        F.cross_entropy(left(DATA), LABELS).backward()
        first.step()
        for part in DATA.chunk(20):
            (right(part).sum() * 1e-3).backward()
        second.step()
    net = model()
    opt = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(net(DATA), LABELS)
        loss.backward()
        return loss

    opt.step(closure)
    point = torch.nn.Parameter(torch.tensor(1.0))
    opt = torch.optim.SGD([point], lr=0.1)
    opt.step()
    (point * math.nan).backward()
    opt.step()
    many = torch.stack([point, point])
    many.backward(torch.ones(2))
    opt.step()
    return first, second


def child(rank):
    path = "file://" + os.path.abspath("meet" + os.environ.get("REPRO_ENV_TRACE_EVERY", ""))
    torch.distributed.init_process_group("gloo", init_method=path, rank=rank, world_size=2)
    first = train(600, lambda step, net, opt, batch: batch + rank)
    train(2)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    kept = [train(12), train(12, ulp), train(12, byte), train(12, rate), train(12, seed), train(11)]
    kept += other()
    sys.stdout.flush()
    processes = [multiprocessing.get_context("fork").Process(target=child, args=(rank,)) for rank in (1, 0)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print("last", float(torch.rand(1)))
'''

TRAINERS = """
import logging, os, sys, warnings
warnings.simplefilter("ignore")
import torch
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
DATA = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))

import lightning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.seen = []

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.layer(batch[0]), batch[1])
        self.seen.append(loss.item())
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.1)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)]


net = Net()
lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu").fit(
    net, torch.utils.data.DataLoader(DATA, batch_size=8)
)
print(net.seen)

import transformers


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


arguments = transformers.TrainingArguments(
    output_dir="out", max_steps=4, per_device_train_batch_size=4, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, gradient_accumulation_steps=2
)
trainer = transformers.Trainer(Model(), arguments, train_dataset=[{"x": x, "labels": y} for x, y in DATA])
sys.stdout, old = open(os.devnull, "w"), sys.stdout
trainer.train()
sys.stdout = old
print([one["loss"] for one in trainer.state.log_history if "loss" in one])
"""


class Traced:
    """Scripts, run under the hooks."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        self.notes = folder / "notes"
        self.errors = ""
        """What the last script printed on stderr."""

    def run(self, code: str, *, trace: str = "", every: str = "0") -> list[str]:
        """Lines that it printed. `trace`: name of the folder."""
        (self.folder / "script.py").write_text(code)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "PYTHONPATH": str(SEEDS),
            "PYTHONHASHSEED": "1",
            "OMP_NUM_THREADS": "1",
            "REPRO_ENV_SEED": "1",
            "REPRO_ENV_NOTES": str(self.notes),
        }
        if trace:
            env |= {"REPRO_ENV_TRACE": str(self.folder / trace), "REPRO_ENV_TRACE_EVERY": every}
        words = (self.python, "script.py")
        done = subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        self.errors = done.stderr
        return done.stdout.splitlines()

    def traces(self, name: str) -> dict[str, Trace]:
        files = sorted((self.folder / name).iterdir()) if (self.folder / name).is_dir() else []
        return {path.name: trace.parse(path.read_bytes().splitlines()) for path in files}

    @property
    def problems(self) -> list[str]:
        lines = [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []
        return [line["problem"] for line in lines if "problem" in line]


@pytest.fixture
def torch(tmp_path: Path) -> Traced:
    return Traced(tmp_path, python_with("torch"))


def only(whole: Trace, number: int) -> dict[str, Trace]:
    """One optimizer of a trace, as if it had been the only one."""
    from msgspec.structs import replace

    steps = tuple(replace(one, optimizer=0) for one in whole.steps if one.optimizer == number)
    counts = whole.counts[number : number + 1]
    return {"rank0.jsonl": replace(whole, optimizers={0: whole.optimizers[number]}, steps=steps, counts=counts)}


@pytest.mark.slow
def test_loops_of_every_kind(torch: Traced) -> None:
    printed = torch.run(MANY, trace="all", every="1")
    again = torch.run(MANY, trace="paced")
    assert torch.problems == []
    whole = torch.traces("all")
    assert sorted(whole) == ["rank0-process-2.jsonl", "rank0.jsonl", "rank1-process-1.jsonl"]  # forked children have their own
    mine = whole["rank0.jsonl"]

    # Numbers do not change by being looked at, however often; and equal runs have equal traces.
    assert sorted(printed) == sorted(again) == sorted(torch.run(MANY))  # two children, in any order
    found = divergence.compare(whole, torch.traces("paced"))
    assert found.equal, found
    # One step has no loss, and one a loss that is no single number. A child's first 16 steps are looked at, and one of its
    # second optimizer (below); how many more depends on how fast the machine is.
    assert found.losses >= sum(mine.counts) - 2 + 2 * (16 + 1)
    quick = torch.traces("paced")["rank1-process-1.jsonl"]
    assert quick.counts == (600, 2)
    assert len([one for one in quick.steps if one.optimizer == 0]) < 400  # steps this short have no line each
    assert [len(one.losses or ()) for one in quick.steps if one.optimizer == 1 and one.losses is not None] == [1]  # not both
    assert found.digests >= 4 * len(mine.counts)

    # The digest is what it says: sha256 of type, shape and bytes of each tensor.
    last = {one.optimizer: one.sha256 for one in mine.steps if one.at_exit}
    assert [last[number] for number in range(5)] == [line.split()[2] for line in printed[:5]]

    # Two optimizers, accumulated gradients, names, a closure, one that is gone, and what is no number.
    assert mine.counts == (12, 12, 12, 12, 12, 11, 3, 3, 1, 3)
    by = {(one.optimizer, one.step): one for one in mine.steps if not one.at_exit}
    assert [len(by[7, step].losses or ()) for step in (1, 2, 3)] == [16, 16, 16]
    assert mine.optimizers[7].names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert len(by[8, 1].losses or ()) == 2
    assert 8 not in last
    assert by[9, 1].losses == ()
    assert repr(by[9, 2].losses) == "(nan,)"
    assert by[9, 3].losses == (None,)

    # Planted differences, each found where it is.
    def first(number: int) -> tuple[str, int, int | None]:
        (one,) = divergence.compare(only(mine, 0), only(mine, number)).first
        return one.what, one.step, one.equal

    one_bit = first(1)
    assert one_bit[0] in ("loss", "weights")
    assert one_bit[1:] == (5, 4)
    assert first(2) == ("loss", 3, 2)
    assert first(3) == ("learning rate", 4, 3)
    assert first(4) == ("weights before the first step", 0, None)
    assert first(5) == ("steps", 11, 11)


@pytest.mark.slow
def test_a_trace_that_cannot_be_is_noted_and_hurts_nobody(torch: Traced) -> None:
    code = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([weight], lr=0.25)
for step in range(20):
    opt.zero_grad()
    weight.sum().backward()
    opt.step()
print(weight.tolist())
"""
    (torch.folder / "file").touch()
    assert torch.run(code, trace="file/below") == ["[-4.0, -4.0]"]
    assert torch.problems[0].startswith("trace of the first step: NotADirectoryError")


def test_an_optimizer_that_dies_during_shutdown_prints_nothing(torch: Traced) -> None:
    """nanoGPT's optimizer dies after the globals of our module were cleared, and before those of torch.optim."""
    code = """
import builtins, sys
import torch
weight = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([weight], lr=0.25)
weight.sum().backward()
opt.step()
ours = sys.modules["_repro_env_trace"]
between = sys.modules["_repro_env_trace_pace"]  # cleared after ours
between.opt = opt
builtins.kept = [between, ours, sys.modules["torch.optim.optimizer"]]
print(weight.tolist())
"""
    assert torch.run(code, trace="end") == ["[0.75, 0.75]"]
    assert torch.errors == ""
    assert [one.counts for one in torch.traces("end").values()] == [(1,)]


@pytest.mark.soak
def test_a_compiled_step_stays_compiled_and_it_is_noted(torch: Traced) -> None:
    code = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([weight], lr=0.25)
graphs = []
step = torch.compile(opt.step, backend=lambda graph, inputs: graphs.append(graph) or graph)
for _ in range(2):
    weight.sum().backward()
    step()
print(weight.tolist(), len(graphs) > 0)
"""
    assert torch.run(code, trace="none") == ["[0.25, 0.25] True"]
    assert torch.problems == ["trace: there were losses, and no step of an optimizer that we see; compiled ones we do not"]
    assert torch.traces("none") == {}


@pytest.mark.slow
def test_lightning_and_the_trainer_of_transformers(tmp_path: Path) -> None:
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "`make trainers`, and name its Python in REPRO_ENV_TEST_TRAINERS")
    traced = Traced(tmp_path, python)
    printed = [json.loads(line) for line in traced.run(TRAINERS, trace="out/of/sight")[-2:]]
    assert traced.problems == []
    (told,) = traced.traces("out/of/sight").values()
    assert told.counts == (6, 4)
    losses = {
        number: [one.losses for one in told.steps if one.optimizer == number and one.losses is not None] for number in (0, 1)
    }
    assert [one[0] for one in losses[0]] == printed[0]
    assert [round(sum(value or 0 for value in one), 6) for one in losses[1]] == [
        round(one, 6) for one in printed[1]
    ]  # two batches a step
    assert [one.rates for one in told.steps if one.optimizer == 0 and one.losses is not None] == [(0.1,)] * 3 + [(0.05,)] * 3


def test_the_pace_is_a_power_of_two_that_keeps_to_its_share() -> None:
    code = """
import json, sys
sys.path.insert(0, sys.argv[1])
from _repro_env_trace_pace import Pace as _Pace
told = []
for cost in (1e-6, 1e-5, 1e-4, 1e-3, 1.0, 60.0):
    for step in (1e-4, 1e-3, 0.02, 1.0, 30.0):
        pace, given = _Pace(0.0015), _Pace(0.0015, 7)
        for number in range(1, 6):
            pace.took(cost if number > 1 else 1e9, number)  # the first does not count
            given.took(cost, number)
        pace.fit(step, 1)
        given.fit(step, 1)
        first = pace.every
        pace.fit(step * 1.2, 1)
        told.append((cost, step, first, pace.every == first, given.every))
        pace.fit(1e9, 4)
        told[-1] += (pace.every,)
print(json.dumps(told))
"""
    done = subprocess.run([sys.executable, "-c", code, str(SEEDS)], capture_output=True, text=True, check=True)
    for cost, step, every, kept, given, least in json.loads(done.stdout):
        assert every & (every - 1) == 0
        assert cost / (every * step) <= 0.0015
        assert every == 1 or cost / (every / 2 * step) >= 0.0015 * 0.99  # and not rarer than that
        assert kept  # a little more time moves nothing
        assert (given, least) == (7, 4)
