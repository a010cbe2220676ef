"""`exec --trace`: processor time of a step of training with a trace, against a step of the same loop in the same process without.

Three loops on the CPU, with steps of very different length. Two processes of one script differ by some percent by themselves,
by where their memory lies, which is more than what is to be found. So one process takes turns: the functions that the
trace gave to torch are taken away, and put back. The turns, in random order: with the trace as in the first 10,000 steps, which are
all recorded ("recorded"), with it as in the steps after these, most of which are not ("passed"), without it ("without"), and once more
without ("nothing": how far the measurement errs). Each step is timed by itself, and the median of its kind counts, so that what others
do on the machine does not. After each ratio: its range in 90 % of the cases when the steps are drawn anew.

Not measured: the sha256 of all weights, before and after the first step, at every 1,000th and at the end.

    build/venv/bin/python benchmarks/trace.py [--count 5]
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import parts

HOOKS = parts.ROOT / "repro_env" / "guest" / "seeds"
LOOP = """
import random, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as around
torch.set_num_threads(1)
torch.manual_seed(0)
kind, steps, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if kind == "tiny":
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = torch.randn(256, 64)
elif kind == "cnn":
    net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 10))
    data = torch.randn(64, 1, 8, 8)
else:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), nn.Flatten(), nn.Linear(128 * 16, 10))
    data = torch.randn(8, 16, 128)
target = torch.randint(0, 10, (len(data),))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)

def step():
    opt.zero_grad()
    F.cross_entropy(net(data), target).backward()
    opt.step()

tables = (around._global_optimizer_pre_hooks, around._global_optimizer_post_hooks)
theirs, traced = [dict(table) for table in tables], torch.autograd.backward
assert all(len(hooks) == 1 for hooks in theirs), "these are to be the hooks of the trace, and no others"
trace = sys.modules["_repro_env_trace"]

def leave():
    for table in tables:
        table.clear()
    torch.autograd.backward = traced.__wrapped__

def come_back(recorded):
    trace._FIRST = (1 << 62) if recorded else 0
    trace._EVERY = 1 << 62
    for table, hooks in zip(tables, theirs):
        table.update(hooks)
    torch.autograd.backward = traced

began = time.thread_time()
while time.thread_time() - began < 2:
    step()
leave()
shuffled = random.Random(0)
began = time.thread_time()
while time.thread_time() - began < seconds:
    turns = ["recorded", "passed", "without", "nothing"]
    shuffled.shuffle(turns)
    for turn in turns:
        if turn in ("recorded", "passed"):
            come_back(turn == "recorded")
        step()
        for _ in range(steps):
            start = time.thread_time_ns()
            step()
            print(turn, time.thread_time_ns() - start)
        leave()
come_back(True)
"""
LOOPS = {"tiny": 32, "cnn": 4, "transformer": 2}
"""Steps of a turn."""
KINDS = ("without", "nothing", "recorded", "passed")


class Ratio(NamedTuple):
    """Of the median step of a kind to one without a trace."""

    whole: float
    low: float
    high: float
    """It is between these in 90 % of the cases when steps are drawn anew."""


def ratio(ours: Sequence[int], theirs: Sequence[int]) -> Ratio:
    drawn = random.Random(0)
    again = [
        statistics.median(drawn.choices(ours, k=len(ours))) / statistics.median(drawn.choices(theirs, k=len(theirs)))
        for _ in range(400)
    ]
    ends = statistics.quantiles(again, n=20)
    return Ratio(statistics.median(ours) / statistics.median(theirs), ends[0], ends[-1])


def measured(python: Path, kind: str, seconds: int) -> dict[str, list[int]]:
    """Nanoseconds of each step, by its kind."""
    directory = parts.fresh(parts.BUILD / "trace")
    directory.mkdir(parents=True)
    more = {"PYTHONPATH": str(HOOKS), "REPRO_ENV_SEED": "1", "REPRO_ENV_REPORTS": str(directory / "notes")}
    more |= {"REPRO_ENV_DETERMINISM": "warn", "REPRO_ENV_TRACE": str(directory / "trace")}
    words = [str(python), "-c", LOOP, kind, str(LOOPS[kind]), str(seconds)]
    done = subprocess.run(words, env=parts.environ(more=more), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"a training loop ended with {done.returncode}: {done.stderr[-3000:]}")
    steps: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for line in done.stdout.splitlines():
        turn, took = line.split()
        steps[turn].append(int(took))
    return steps


def main(count: int, python: Path) -> list[parts.Row]:
    rows = []
    for kind in LOOPS:
        steps = measured(python, kind, count * 6)
        median = {turn: statistics.median(times) / 1e6 for turn, times in steps.items()}
        without = f"{median['without']:.3f} ms ({len(steps['without']):,} steps)"
        for turn, what in (
            ("recorded", "a recorded step"),
            ("passed", "a step after these"),
            ("nothing", "nothing, the same way"),
        ):
            cost = ratio(steps[turn], steps["without"])
            goal, good = ("1", cost.low <= 1 <= cost.high) if turn == "nothing" else ("none", True)
            name = f"`exec --trace`: {kind}, {what} (90 %: {cost.low:.4f} to {cost.high:.4f})"
            rows.append(parts.Row(name, f"{median[turn]:.3f} ms", without, cost.whole, goal, good))
            print(f"{cost.whole:.4f}  {name}: {rows[-1].ours}; {without}", flush=True)
    return rows


if __name__ == "__main__":
    made = parts.parser(__doc__)
    made.add_argument(
        "--python", type=Path, help="an interpreter with torch; default: the benchmarks' own environment, made once"
    )
    given = made.parse_args()
    chosen = given.python or parts.environment(torch=True) / ".venv" / "bin" / "python"
    found = main(given.count, chosen)
    parts.write(found, "trace")
