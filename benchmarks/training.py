"""How long a training of a minute takes inside a run, against the same on the host: embedded, and as a job of Slurm.

    build/venv/bin/python benchmarks/training.py

A convolutional network on one core, the same for all sides. Each step reads its batch from a file of the project. The clock runs in
the script, from the first counted step to the last, so the start of the run and its record are not part of it. The sides
take turns. All train to the same weights, or the benchmark fails. It needs root and the programs of Slurm.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import parts

sys.path.remove(str(Path(__file__).resolve().parent))  # it has a `secrets`, as the standard library has
sys.path.append(str(parts.ROOT))
from tests.slurm import slurm

SECONDS = 60
"""How long the host trains, at least."""
GOAL = 1.02
TRAIN = """\
import hashlib, json, os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
BATCH = 64 * 3 * 32 * 32
with open("batches.bin", "wb") as file:
    file.write(b"".join(torch.rand(BATCH).numpy().tobytes() for _ in range(100)))
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1568, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(-10, int(sys.argv[2])):
    if step == 0:
        wall, spent = time.perf_counter(), time.process_time()
    with open("batches.bin", "rb") as file:
        file.seek(step % 100 * BATCH * 4)
        images = torch.frombuffer(bytearray(file.read(BATCH * 4)), dtype=torch.float32).view(64, 3, 32, 32)
    loss = nn.functional.cross_entropy(model(images), torch.arange(64) % 10)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
wall, spent = time.perf_counter() - wall, time.process_time() - spent
weights = hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()
print(json.dumps({"wall": wall, "spent": spent, "weights": weights}))
"""


class Took(NamedTuple):
    wall: float
    spent: float
    """Processor seconds."""


def main(count: int) -> tuple[list[parts.Row], int]:
    """Return the rows, and the number of steps."""
    directory = parts.environment(torch=True)
    (directory / "train.py").write_text(TRAIN)
    (directory / "batches.bin").unlink(missing_ok=True)
    python = directory / ".venv" / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="slurm-") as root, slurm(Path(root)) as cluster:  # the path of a socket is short
        env = parts.environ(parts.fresh(parts.BUILD / "training-store"), cluster.environ)
        parts.run([parts.TOOL, "capture", "--python", python], env=env, cwd=directory)
        parts.run([parts.TOOL, "rebuild"], env=env, cwd=directory)
        sides: dict[str, list[str | Path]] = {
            "host": [python],
            "embedded": [parts.TOOL, "exec"],
            "slurm": [parts.TOOL, "exec", "--on", "slurm", "--wait"],
        }
        core, all_weights = str(max(os.sched_getaffinity(0))), set()

        def train(words: list[str | Path], steps: int) -> Took:
            printed = json.loads(parts.output([*words, "train.py", core, str(steps)], env=env, cwd=directory).splitlines()[-1])
            all_weights.add((steps, printed["weights"]))
            return Took(printed["wall"], printed["spent"])

        steps = int(SECONDS * 1.1 / train(sides["host"], 100).wall * 100)
        took: dict[str, list[Took]] = {name: [] for name in sides}
        for _ in range(count):
            for name, words in sides.items():
                took[name].append(train(words, steps))
    if len(all_weights) != 2:  # of the two numbers of steps
        sys.exit(f"the sides trained to different weights: {sorted(all_weights)}")
    return [row(name, took[name], took["host"]) for name in sides if name != "host"], steps


def row(name: str, ours: list[Took], host: list[Took]) -> parts.Row:
    """The ratio of the medians of the wall times. Those of the processor times are in the texts."""
    (wall, spent), (host_wall, host_spent) = (
        (statistics.median(each.wall for each in side), statistics.median(each.spent for each in side)) for side in (ours, host)
    )
    return parts.Row(
        f"a training inside {name}, first step to last (median of {len(ours)})",
        f"{wall:.2f} s (processor {spent:.2f} s)",
        f"host {host_wall:.2f} s ({host_spent:.2f} s)",
        wall / host_wall,
        f"at most {GOAL}",
        wall / host_wall <= GOAL,
    )


if __name__ == "__main__":
    made = parts.parser(__doc__)
    made.set_defaults(count=3)
    table, number = main(made.parse_args().count)
    parts.report(table)
    print("written to", parts.write(table, "training", steps=number).relative_to(parts.ROOT))
