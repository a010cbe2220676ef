"""Traces of real training with PyTorch, several ranks, and Lightning and transformers if they are installed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from repro_env.compare.traces import divergence
from repro_env.compare.traces.trace import Trace
from tests.guest.scripts import python_with
from tests.guest.traces import Traced
from tests.parts import need

MANY = '''
"""Training loops of every kind, each with its own optimizer. Tracing must not change the results."""
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
    digests = [hashlib.sha256(f"{p.dtype} {tuple(p.shape)}\\n".encode() + bytes(p.detach().contiguous().view(torch.uint8).flatten().tolist())) for p in params]
    return hashlib.sha256(b"".join(part.digest() for part in digests)).hexdigest()


def train(steps, change=lambda step, net, opt, batch: batch, order=None):
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(1, steps + 1):
        batch = change(step, net, opt, DATA)
        opt.zero_grad()
        F.cross_entropy(net(batch), LABELS).backward()
        opt.step()
    print("plain", step, digest(net.parameters()))
    return opt  # kept alive until exit


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
        for layer in net:
            getattr(layer, "reset_parameters", int)()
    return batch


def other():
    """Two optimizers, a closure, accumulated gradients, a NaN, a loss with several elements, a missing loss, a deleted optimizer."""
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
    path = "file://" + os.path.abspath("meet")
    torch.distributed.init_process_group("gloo", init_method=path, rank=rank, world_size=2)
    first = train(20, lambda step, net, opt, batch: batch + rank)
    train(2)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    kept = [train(12), train(12, ulp), train(12, byte), train(12, rate), train(12, seed), train(11)]
    kept += other()
    sys.stdout.flush()
    if os.path.exists("meet"):  # a run before this one may have left it, and then both children would wait for ever
        os.unlink("meet")
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
        self.losses = []

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.layer(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=0.1)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)]


net = Net()
lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu").fit(
    net, torch.utils.data.DataLoader(DATA, batch_size=8)
)
print(net.losses)

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
print([row["loss"] for row in trainer.state.log_history if "loss" in row])
"""


@pytest.fixture
def torch(tmp_path: Path) -> Traced:
    return Traced(tmp_path, python_with("torch"))


def only(full: Trace, number: int) -> dict[str, Trace]:
    """A trace with only this optimizer."""
    from msgspec.structs import replace

    steps = tuple(replace(step, optimizer=0) for step in full.steps if step.optimizer == number)
    counts = full.counts[number : number + 1]
    return {"rank0.jsonl": replace(full, optimizers={0: full.optimizers[number]}, steps=steps, counts=counts)}


@pytest.mark.slow
def test_training_loops_of_every_kind_are_traced(torch: Traced) -> None:
    printed = torch.run(MANY, trace="all")
    again = torch.run(MANY, trace="again")
    assert torch.problems == []
    traces = torch.traces("all")
    assert sorted(traces) == ["rank0-process-2.jsonl", "rank0.jsonl", "rank1-process-1.jsonl"]  # each forked child has its own
    main = traces["rank0.jsonl"]

    # Tracing does not change results, and equal runs have equal traces.
    assert sorted(printed) == sorted(again) == sorted(torch.run(MANY))  # the two children print in any order
    found = divergence.compare(traces, torch.traces("again"))
    assert found.equal, found
    # A step has no loss, and another a loss that is not a single number.
    assert found.losses == sum(main.counts) - 2 + 2 * (20 + 2)
    child = traces["rank1-process-1.jsonl"]
    assert child.counts == (20, 2)
    assert [len(step.losses or ()) for step in child.steps if step.optimizer == 1 and step.losses is not None] == [1, 1]
    # Before and after the first step, and at exit for the eight optimizers that still exist.
    assert found.digests == 2 * len(main.counts) + 8 + 2 * (2 + 2)

    # The digest is the sha256 of the dtype, shape and bytes of each tensor.
    last = {step.optimizer: step.sha256 for step in main.steps if step.at_exit}
    assert [last[number] for number in range(5)] == [line.split()[2] for line in printed[:5]]

    # Two optimizers, accumulated gradients, names, a closure, a deleted optimizer, and a NaN.
    assert main.counts == (12, 12, 12, 12, 12, 11, 3, 3, 1, 3)
    by = {(step.optimizer, step.step): step for step in main.steps if not step.at_exit}
    assert [len(by[7, step].losses or ()) for step in (1, 2, 3)] == [16, 16, 16]
    assert main.optimizers[7].names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert len(by[8, 1].losses or ()) == 2
    assert 8 not in last
    assert by[9, 1].losses == ()
    assert repr(by[9, 2].losses) == "(nan,)"
    assert by[9, 3].losses == (None,)

    # Each planted difference is found in its step.
    def first(number: int) -> tuple[str, int, int | None]:
        (difference,) = divergence.compare(only(main, 0), only(main, number)).first
        return difference.what, difference.step, difference.equal

    one_bit = first(1)
    assert one_bit[0] in ("loss", "weights")
    assert one_bit[1:] == (5, 1)
    assert first(2) == ("loss", 3, 1)
    assert first(3) == ("learning rate", 4, 1)
    assert first(4) == ("weights before the first step", 0, None)
    assert first(5) == ("steps", 11, 1)


def test_a_long_training_is_recorded_at_every_step_and_later_at_intervals(torch: Traced) -> None:
    code = """
import sys
import torch
trace = sys.modules["_repro_env_trace"]
assert (trace._FIRST, trace._EVERY) == (10_000, 1_000)
trace._FIRST, trace._EVERY = 6, 4
weight = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([weight], lr=0.25)
for step in range(18):
    opt.zero_grad()
    (weight.sum() * step).backward()
    opt.step()
"""
    torch.run(code, trace="long")
    (found,) = torch.traces("long").values()
    assert found.counts == (18,)
    steps = [step for step in found.steps if not step.at_exit]
    assert [step.step for step in steps] == [*range(7), 8, 12, 16]
    assert [step.step for step in steps if step.sha256] == [0, 1, 4, 8, 12, 16]
    assert all(step.screen and len(step.losses or ()) == 1 for step in steps[1:])  # only the loss of that step
    assert [step.step for step in found.steps if step.at_exit and step.sha256] == [18]


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_is_noted_and_the_script_continues(torch: Traced) -> None:
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
    (torch.directory / "file").touch()
    assert torch.run(code, trace="file/below") == ["[-4.0, -4.0]"]
    assert torch.problems[0].startswith("trace of the first step: NotADirectoryError")


def test_an_optimizer_that_is_deleted_during_shutdown_prints_nothing(torch: Traced) -> None:
    """nanoGPT's optimizer is deleted after the globals of `_repro_env_trace` are cleared, and before those of torch.optim."""
    code = """
import builtins, sys
import torch
weight = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([weight], lr=0.25)
weight.sum().backward()
opt.step()
trace = sys.modules["_repro_env_trace"]
between = sys.modules["_repro_env_trace_tensors"]  # cleared after `_repro_env_trace`
between.opt = opt
builtins.kept = [between, trace, sys.modules["torch.optim.optimizer"]]
print(weight.tolist())
"""
    assert torch.run(code, trace="end") == ["[0.75, 0.75]"]
    assert torch.errors == ""
    assert [found.counts for found in torch.traces("end").values()] == [(1,)]


@pytest.mark.soak
def test_a_compiled_step_stays_compiled_and_is_noted_as_untraced(torch: Traced) -> None:
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
    assert torch.problems == ["trace: there were losses but no optimizer steps; compiled steps cannot be traced"]
    assert torch.traces("none") == {}


@pytest.mark.soak
def test_lightning_and_the_trainer_of_transformers_are_traced(tmp_path: Path) -> None:
    python = os.environ.get("REPRO_ENV_TEST_TRAINERS", "")
    need(python, "`make trainers`, and name its Python in REPRO_ENV_TEST_TRAINERS")
    traced = Traced(tmp_path, python)
    printed = [json.loads(line) for line in traced.run(TRAINERS, trace="out/of/sight")[-2:]]
    assert traced.problems == []
    (found,) = traced.traces("out/of/sight").values()
    assert found.counts == (6, 4)
    losses = {
        number: [step.losses for step in found.steps if step.optimizer == number and step.losses is not None] for number in (0, 1)
    }
    assert [values[0] for values in losses[0]] == printed[0]
    assert [round(sum(value or 0 for value in values), 6) for values in losses[1]] == [
        round(value, 6) for value in printed[1]
    ]  # two batches a step
    assert [step.rates for step in found.steps if step.optimizer == 0 and step.losses is not None] == [(0.1,)] * 3 + [(0.05,)] * 3
