"""`exec --trace`: processor time of a step of training with a trace, against a step of the same loop in the same process without.

Three loops on the CPU, with steps of very different length. Two processes of one script differ by some percent by themselves,
by where their memory lies, which is more than what is to be found. So it is one process that takes turns: the functions that the
trace gave to torch are taken away, and put back. The turns, in random order: with the trace, without it, and once more
without. Each step is timed by itself, and the middle of its kind counts, so that what others do on the machine does not: steps
without, the same once more ("nothing": how far the measurement errs), and with the trace those without a line, those with one, and
those after one, which find the caches used by somebody else. The ratio is of an average step: each kind by how often it comes.
Beside it: where it lies in 90 % of the cases when the steps are drawn anew.

A trace counts what it costs by two clocks; here both tell processor time, and stand still in the turns without it. A row says what
it counted, with what comes once: weights hashed before and after the first step and at the end, the first lines.

    build/venv/bin/python benchmarks/trace.py [--count 5]
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import parts

HOOKS = parts.ROOT / "repro_env" / "inside" / "seeds"
GOAL = 1.01
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
theirs, traced = [dict(one) for one in tables], torch.autograd.backward
assert all(len(one) == 1 for one in theirs), "these are to be the hooks of the trace, and no others"
away = left = 0.0
# Nothing has been trained yet, so the clocks of the trace have not been asked yet.
trace = sys.modules["_repro_env_trace"]
trace.perf_counter = trace.thread_time = lambda: time.thread_time() - away

def leave():
    global left
    left = time.thread_time()
    for one in tables:
        one.clear()
    torch.autograd.backward = traced.__wrapped__

def come_back():
    global away
    for one, hooks in zip(tables, theirs):
        one.update(hooks)
    torch.autograd.backward = traced
    away += time.thread_time() - left

began = time.thread_time()
while time.thread_time() - began < 2:
    step()
(known,) = trace._trace._known.values()
leave()
shuffled = random.Random(0)
began = time.thread_time()
while time.thread_time() - began < seconds:
    turns = ["with", "without", "nothing"]
    shuffled.shuffle(turns)
    for turn in turns:
        if turn == "with":
            come_back()
        step()
        after = False
        for _ in range(steps):
            line = turn == "with" and known.step + 1 >= known.next
            start = time.thread_time_ns()
            step()
            took = time.thread_time_ns() - start
            print("line" if line else "after" if after else turn, took)
            after = line
        if turn == "with":
            leave()
come_back()
"""
LOOPS = {"tiny": 32, "cnn": 4, "transformer": 2}
"""Steps of a turn."""


KINDS = ("without", "nothing", "with", "line", "after")


class Ratio(NamedTuple):
    """Of an average step to one without a trace."""

    whole: float
    low: float
    high: float
    """Between these it lies in 90 % of the cases when steps are drawn anew."""

    @property
    def spread(self) -> str:
        return f"90 %: {self.low:.4f} to {self.high:.4f}"


def average(steps: Mapping[str, Sequence[int]]) -> float:
    """Nanoseconds of a step with a trace: the middle of each kind, by how often it comes."""
    count = sum(map(len, steps.values()))
    return sum(statistics.median(times) * len(times) / count for times in steps.values() if times)


def ratio(ours: Mapping[str, Sequence[int]], theirs: Sequence[int]) -> Ratio:
    drawn = random.Random(0)
    again = []
    for _ in range(400):
        mine = average({kind: drawn.choices(times, k=len(times)) for kind, times in ours.items() if times})
        again.append(mine / statistics.median(drawn.choices(theirs, k=len(theirs))))
    ends = statistics.quantiles(again, n=20)
    return Ratio(average(ours) / statistics.median(theirs), ends[0], ends[-1])


def measured(python: Path, kind: str, seconds: int) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Nanoseconds of each step by its kind, and the end of the trace."""
    folder = parts.fresh(parts.BUILD / "trace")
    folder.mkdir(parents=True)
    more = {"PYTHONPATH": str(HOOKS), "REPRO_ENV_SEED": "1", "REPRO_ENV_NOTES": str(folder / "notes")}
    more |= {"REPRO_ENV_DETERMINISM": "warn", "REPRO_ENV_TRACE": str(folder / "trace"), "REPRO_ENV_TRACE_EVERY": "0"}
    words = [str(python), "-c", LOOP, kind, str(LOOPS[kind]), str(seconds)]
    done = subprocess.run(words, env=parts.environ(more=more), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"a training loop ended with {done.returncode}: {done.stderr[-3000:]}")
    steps: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for line in done.stdout.splitlines():
        what, took = line.split()
        steps[what].append(int(took))
    lines = (folder / "trace" / "rank0.jsonl").read_text().splitlines()
    return steps, json.loads(lines[-1])["end"]


def main(count: int, python: Path) -> list[parts.Row]:
    rows = []
    goal = f"at most {GOAL}"
    for kind in LOOPS:
        steps, end = measured(python, kind, count * 6)
        middle = {what: statistics.median(times) / 1e6 for what, times in steps.items() if times}
        cost = ratio({what: steps[what] for what in ("with", "line", "after")}, steps["without"])
        nothing = ratio({"nothing": steps["nothing"]}, steps["without"])
        told = ", ".join(
            f"{what} {middle[what]:.3f} ({len(steps[what]):,})" for what in ("with", "line", "after") if what in middle
        )
        without = f"{middle['without']:.3f} ms ({len(steps['without']):,} steps)"
        rows.append(
            parts.Row(
                f"`exec --trace`: {kind} ({cost.spread})", f"ms (steps): {told}", without, cost.whole, goal, cost.high <= GOAL
            )
        )
        rows.append(
            parts.Row(
                f"nothing, the same way: {kind} ({nothing.spread})",
                f"{middle['nothing']:.3f} ms",
                without,
                nothing.whole,
                "1",
                nothing.low <= 1 <= nothing.high,
            )
        )
        share = end["spent"] / end["seconds"]
        own = (f"{end['spent']:.2f} s", f"{end['seconds']:.1f} s with it")
        rows.append(parts.Row(f"the trace's own count: {kind}", *own, 1 + share, goal, 1 + share <= GOAL))
        for row in rows[-3:]:
            print(f"{row.ratio:.4f}  {row.what}: {row.ours}; {row.theirs}", flush=True)
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
