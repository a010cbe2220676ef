"""`exec --trace`: processor time of a training loop under the hooks with a trace, against the same script under the hooks without.

Three loops on the CPU, with steps of very different length. Both processes of a script live side by side and take turns of a
fraction of a second, so that both see the same load; the middle of the ratios of all pairs of turns counts. The pace of a trace
goes by the clock, which does not stop while the other has its turn: the trace may cost twice its share here. A row below says
what the trace itself says it cost of all that time.

    build/venv/bin/python benchmarks/trace.py [--count 5]
"""

from __future__ import annotations

import json
import statistics
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
print(sum(p.numel() for p in net.parameters()), flush=True)
for line in sys.stdin:
    began = time.process_time()
    for _ in range(steps):
        step()
    print(time.process_time() - began, flush=True)
"""
LOOPS = {"tiny": 300, "cnn": 12, "transformer": 4}
"""Steps of a turn."""


class Loop:
    """A script that trains when it is its turn."""

    def __init__(self, python: Path, kind: str, folder: Path, *, traced: bool) -> None:
        self.trace = folder / "trace"
        more = {"PYTHONPATH": str(HOOKS), "REPRO_ENV_SEED": "1", "REPRO_ENV_NOTES": str(folder / "notes")}
        more["REPRO_ENV_DETERMINISM"] = "warn"
        if traced:
            more |= {"REPRO_ENV_TRACE": str(self.trace), "REPRO_ENV_TRACE_EVERY": "0"}
        words = [str(python), "-c", LOOP, kind, str(LOOPS[kind])]
        self.process = subprocess.Popen(
            words, env=parts.environ(more=more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.weights = int(self.answer())

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a training loop ended too early")
        return line

    def turn(self) -> float:
        """Seconds of processor time."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.answer())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main(count: int, python: Path) -> list[parts.Row]:
    rows = []
    for kind, steps in LOOPS.items():
        folder = parts.fresh(parts.BUILD / "trace")
        folder.mkdir(parents=True)
        plain, traced = (Loop(python, kind, folder, traced=one) for one in (False, True))
        pairs = []
        for number in range(count * 20):
            first, second = (plain, traced) if number % 2 else (traced, plain)
            times = {first: first.turn()}
            times[second] = second.turn()
            pairs.append((times[traced], times[plain]))
        for loop in (plain, traced):
            loop.end()
        ours, theirs = (statistics.median(side) / steps * 1000 for side in zip(*pairs, strict=True))
        ratio = statistics.median(mine / other for mine, other in pairs)
        what = f"{kind}, {plain.weights} weights, {len(pairs)} turns of {steps} steps"
        said = json.loads((traced.trace / "rank0.jsonl").read_text().splitlines()[-1])["end"]
        share = said["spent"] / said["seconds"]
        goal = f"at most {GOAL}"
        rows.append(
            parts.Row(f"`exec --trace`: {what}", f"{ours:.3f} ms a step", f"{theirs:.3f} ms without", ratio, goal, ratio <= GOAL)
        )
        rows.append(
            parts.Row(
                f"the trace's own count: {kind}", f"{share * 100:.2f} %", "of all the time", 1 + share, goal, 1 + share <= GOAL
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
