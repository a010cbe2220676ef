"""Traces of unusual training loops, and traces that cannot be written. The results of the script must not change."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro_env.compare.traces import divergence
from tests.guest.scripts import SEEDS, python_with
from tests.guest.traces import Traced

ODD = '''
"""Parameters without bytes to read, and optimizers that are created, deleted and fail. The comments are their numbers."""
import copy, math, os, warnings
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

warnings.simplefilter("ignore")
Param, SGD = torch.nn.Parameter, torch.optim.SGD
kept = []


def train(params, opt=None, loss=None, steps=3):
    opt = opt or SGD(params, lr=0.125)
    kept.append((params, opt))
    for _ in range(steps):
        opt.zero_grad()
        (loss() if loss else sum((param * param).sum() for param in params)).backward()
        opt.step()
    return opt


first = Param(torch.ones(3))
train([first, Param(torch.empty(4, 4, device="meta"))], loss=lambda: (first * first).sum())  # 0
with FakeTensorMode():
    train([Param(torch.ones(4))])  # 1
freed = Param(torch.ones(400))
train([freed], steps=20)  # 2
freed.untyped_storage().resize_(0)
odd, other = Param(torch.eye(3).to_sparse()), Param(torch.ones(2))
train([odd, other], loss=lambda: (other * other).sum(), steps=12)  # 3
rows = torch.nn.Embedding(9, 3, sparse=True)
train(list(rows.parameters()), torch.optim.SparseAdam(list(rows.parameters())), lambda: rows(torch.tensor([1, 2])).sum())  # 4
point = Param(torch.ones(3, dtype=torch.complex64))
train([point], torch.optim.Adam([point], lr=torch.tensor(0.5), foreach=False), lambda: (point * point.conj()).real.sum())  # 5
late = train([Param(torch.ones(3))])  # 6
late.add_param_group({"params": [Param(torch.ones(2))], "lr": 0.25})
train(late.param_groups[0]["params"] + late.param_groups[1]["params"], late)
scaled = Param(torch.ones(3))
opt, scaler = SGD([scaled], lr=0.1), torch.amp.GradScaler("cpu")  # 7
for step in range(4):
    scaler.scale((scaled * scaled).sum() * (math.inf if step == 1 else 1)).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
broken = SGD([Param(torch.ones(2))], lr=0.1)  # 8


def closure():
    raise KeyError("the data are gone")


for _ in range(2):
    try:
        broken.step(closure)
    except KeyError:
        broken.step()
try:
    torch.autograd.backward(3)
except TypeError:
    broken.step()
kept += [copy.deepcopy(broken)]
kept[-1].step()  # 9
view = torch.ones(10, 10)
train([Param(view.t()[1:, 2:]), Param(torch.ones(0)), Param(torch.ones(2, dtype=torch.bfloat16))])  # 10
child = os.fork()
if not child:
    train([Param(torch.ones(2))])
    os._exit(0)
os.waitpid(child, 0)
for _ in range(300):
    last = Param(torch.ones(2))
    opt = SGD([last], lr=0.1)
    for _ in range(3):
        opt.step()
print(first.tolist(), view[2:, 1].sum().item(), scaled.tolist())
'''

FULL = """
import os, resource, signal, sys
import torch
weight = torch.nn.Parameter(torch.zeros(4))
opt = torch.optim.SGD([weight], lr=0.5)


def train(steps):
    for _ in range(steps):
        opt.zero_grad()
        weight.sum().backward()
        opt.step()


train(1)
size = int(sys.argv[1])
if size:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))  # a write stops at this size, and the next one fails
train(20)
import time
time.sleep(0.3)
train(44)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(weight.tolist())
"""


@pytest.fixture
def torch(tmp_path: Path) -> Traced:
    return Traced(tmp_path, python_with("torch"))


@pytest.mark.soak
@pytest.mark.slow
def test_unusual_loops_have_the_same_results_with_a_trace(torch: Traced) -> None:
    printed = torch.run(ODD, trace="all")
    assert torch.problems == []
    assert torch.run(ODD) == printed
    traces = torch.traces("all")
    assert sorted(traces) == ["rank0-fork-1.jsonl", "rank0.jsonl"]
    assert not traces["rank0-fork-1.jsonl"].ended
    main = traces["rank0.jsonl"]
    assert main.counts == (3, 3, 20, 12, 3, 3, 6, 3, 3, 1, 3, *[3] * 245)
    assert main.untraced == 55  # the number of optimizers, not of steps
    assert main.invalid == 0
    by = {(step.optimizer, step.step): step for step in main.steps if not step.at_exit}

    # A tensor without bytes is never equal; the other values of the line are recorded.
    for number, tensors in ((0, 2), (1, 1), (3, 2)):
        assert by[number, 1].sha256 is None
        assert len(by[number, 1].tensors) == tensors
    assert by[0, 3].losses == (by[0, 3].losses or ())[:1] != (None,)
    assert by[1, 3].losses == (None,)
    assert by[1, 3].screen is None
    assert by[0, 3].screen is not None
    assert [step.sha256 for step in main.steps if step.at_exit and step.optimizer == 2] == [None]
    assert by[2, 1].sha256 is not None

    assert by[5, 1].rates == (0.5,)
    assert by[6, 3].rates == (0.125,)
    assert by[6, 4].rates == (0.125, 0.25)
    assert [len(by[7, step].losses or ()) for step in (1, 2, 3)] == [
        1,
        2,
        1,
    ]  # the loss of a skipped step belongs to the next step
    assert by[8, 3].losses == (None,)
    assert len(by[10, 1].tensors) == 3
    assert by[10, 1].sha256 is not None

    # Equal loops have equal traces, except for tensors without bytes.
    torch.run(ODD, trace="again")
    found = divergence.compare(traces, torch.traces("again"))
    assert not found.first
    assert not found.equal


@pytest.mark.slow
def test_no_line_is_lost_if_the_disk_is_full_for_a_while(torch: Traced) -> None:
    def run(size: int, trace: str) -> list[str]:
        return torch.run(FULL.replace("sys.argv[1]", str(size)), trace=trace)

    whole = run(0, "whole")
    torch.reports.unlink()  # the limit is for this file, too
    assert whole == run(1500, "full") == ["[-32.5, -32.5, -32.5, -32.5]"]
    assert any("File too large" in problem for problem in torch.problems)
    found = divergence.compare(torch.traces("whole"), torch.traces("full"))
    assert found.equal, found
    assert (found.losses, found.digests) == (65, 3)


@pytest.mark.slow
def test_a_trace_has_no_end_if_the_disk_stays_full(torch: Traced) -> None:
    code = FULL.replace("sys.argv[1]", "1000").replace(
        "(resource.RLIM_INFINITY, resource.RLIM_INFINITY)", "(1000, resource.RLIM_INFINITY)"
    )
    assert torch.run(code, trace="full") == ["[-32.5, -32.5, -32.5, -32.5]"]
    (trace,) = torch.traces("full").values()
    assert not trace.ended
    assert trace.invalid <= 1
    assert not divergence.compare({"a": trace}, {"a": trace}).equal


@pytest.mark.slow
def test_a_killed_process_leaves_complete_lines(torch: Traced) -> None:
    code = """
import torch
weight = torch.nn.Parameter(torch.zeros(4))
opt = torch.optim.SGD([weight], lr=0.5)
print("started", flush=True)
while True:
    opt.zero_grad()
    weight.sum().backward()
    opt.step()
"""
    (torch.directory / "script.py").write_text(code)
    env = {
        "PYTHONPATH": str(SEEDS),
        "REPRO_ENV_SEED": "1",
        "REPRO_ENV_REPORTS": str(torch.reports),
        "REPRO_ENV_TRACE": str(torch.directory / "killed"),
    }
    process = subprocess.Popen([torch.python, "script.py"], cwd=torch.directory, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    until = time.monotonic() + 200
    while not any(len(trace.steps) > 1 for trace in torch.traces("killed").values()) and time.monotonic() < until:
        time.sleep(0.05)
    process.kill()
    process.wait()
    process.stdout.close()
    (trace,) = torch.traces("killed").values()
    assert not trace.ended
    assert trace.invalid == 0
    assert len(trace.steps) > 1


# --- parts, without torch


def part(name: str, code: str) -> object:
    """Run code that uses a part (the module `part`), and return the JSON that it prints."""
    start = f"import sys, json, importlib\nsys.path.insert(0, {str(SEEDS)!r})\npart = importlib.import_module('_repro_env_trace_{name}')\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_trace_file_keeps_lines_that_could_not_be_written(tmp_path: Path) -> None:
    code = f"""
import os
file = part.File({str(tmp_path)!r} + "/out")
file.create("0", ("process", 1))
other = part.File({str(tmp_path)!r} + "/out")
other.create("0", ("process", 1))
file.add("a\\n")
plain, done = os.write, []
def short(fd, data):
    done.append(len(data))
    if len(done) == 2:
        raise OSError(28, "No space left on device")
    return plain(fd, data[:1])
os.write = short
try:
    file.write()
except OSError as error:
    print(json.dumps([error.errno, sorted(os.listdir({str(tmp_path)!r} + "/out"))]), file=sys.stderr)
os.write = plain
file.add("b\\n")
file.write(100.0)
file.add("c\\n")
file.write(100.1)
first = open({str(tmp_path)!r} + "/out/rank0-process-1.jsonl").read()
file.write(100.3)
print(json.dumps([first, open({str(tmp_path)!r} + "/out/rank0-process-1.jsonl").read(), sorted(os.listdir({str(tmp_path)!r} + "/out"))]))
"""
    names = ["rank0-process-1.2.jsonl", "rank0-process-1.jsonl"]
    assert part("file", code) == ["a\nb\n", "a\nb\nc\n", names]
