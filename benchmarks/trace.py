"""`exec --trace`: processor time of a training loop under the hooks with a trace, against the same script under the hooks without.

Three loops on the CPU, with steps of very different length. Each script runs in turn with and without, and the least time of each
side counts: what else runs on the machine only ever adds. A row below says what the trace itself says it cost.

    build/venv/bin/python benchmarks/trace.py [--count 5]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import parts

HOOKS = parts.ROOT / "repro_env" / "inside" / "seeds"
GOAL = 1.01
LOOP = """
import sys, time
import torch
from torch import nn
from torch.nn import functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
kind, steps = sys.argv[1], int(sys.argv[2])
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
for _ in range(20):
    step()
began = time.process_time()
for _ in range(steps):
    step()
print(time.process_time() - began, sum(p.numel() for p in net.parameters()))
"""
LOOPS = {"tiny": 20000, "cnn": 800, "transformer": 400}


def once(python: Path, kind: str, folder: Path, *, traced: bool) -> tuple[float, int, float, float]:
    """(processor seconds of the loop, weights, seconds that the trace says it took, of these for itself)."""
    trace = parts.fresh(folder / "trace")
    more = {
        "PYTHONPATH": str(HOOKS),
        "REPRO_ENV_SEED": "1",
        "REPRO_ENV_NOTES": str(folder / "notes"),
        "REPRO_ENV_DETERMINISM": "warn",
    }
    if traced:
        more |= {"REPRO_ENV_TRACE": str(trace), "REPRO_ENV_TRACE_EVERY": "0"}
    words = [python, "-c", LOOP, kind, str(LOOPS[kind])]
    done = subprocess.run(words, env=parts.environ(more=more), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    seconds, weights = done.stdout.split()
    said = {"seconds": 0.0, "spent": 0.0}
    if traced:
        last = (trace / "rank0.jsonl").read_text().splitlines()[-1]
        said = json.loads(last)["end"]
    return float(seconds), int(weights), said["seconds"], said["spent"]


def main(count: int, python: Path) -> list[parts.Row]:
    folder = parts.fresh(parts.BUILD / "trace")
    folder.mkdir(parents=True)
    rows = []
    for kind, steps in LOOPS.items():
        plain, traced, shares = [], [], []
        weights = 0
        for turn in range(max(count, 3)):
            for with_trace in (turn % 2 == 0, turn % 2 == 1):
                seconds, weights, whole, spent = once(python, kind, folder, traced=with_trace)
                (traced if with_trace else plain).append(seconds)
                if with_trace:
                    shares.append(spent / whole)
        ours, theirs = min(traced), min(plain)
        name = f"{kind}, {weights} weights, {theirs / steps * 1000:.2f} ms a step"
        rows.append(
            parts.Row(
                f"`exec --trace`: {name}, {steps} steps",
                f"{ours:.3f} s",
                f"{theirs:.3f} s without",
                ours / theirs,
                f"at most {GOAL}",
                ours / theirs <= GOAL,
            )
        )
        share = sorted(shares)[len(shares) // 2]
        rows.append(
            parts.Row(
                f"what the trace itself says it took: {name}",
                f"{share * 100:.2f} %",
                "of the time from the first step to the end",
                1 + share,
                f"at most {GOAL}",
                1 + share <= GOAL,
            )
        )
    return rows


if __name__ == "__main__":
    made = parts.parser(__doc__)
    made.add_argument(
        "--python", type=Path, help="an interpreter with torch; default: the benchmarks' own environment, made once"
    )
    given = made.parse_args()
    chosen = given.python or parts.environment(torch=True) / ".venv" / "bin" / "python"
    found = main(given.count, chosen)
    parts.report(found)
    parts.write(found, "trace")
