"""Run the scripts of the tutorial: without checkpoints, then with checkpoints, killed within an epoch and resumed.

Each process is forked from this one, which has only imported modules.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from repro_env.checkpoint import Checkpoint
from tests.checkpoint.operations import in_child

_SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "checkpoints"
_LAST_STEP = 37
"""The number of the step after which the process is killed; an epoch has 20 steps."""


def train(script: str, directory: Path, last: int = 0) -> str:
    directory.mkdir(exist_ok=True)
    os.chdir(directory)
    sys.stdout = sys.stderr = Path("output.txt").open("a", encoding="utf-8")  # noqa: SIM115 - closed when the process ends
    original = Checkpoint.step

    def step(self: Any, **metrics: float) -> None:
        original(self, **metrics)
        if self.steps == last:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.step = step  # type: ignore[method-assign]
    runpy.run_path(str(_SCRIPTS / script), run_name="__main__")
    return ""


def main(root: Path) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # makes torch import everything here, once
    plain, killed = root / "plain", root / "killed"
    assert in_child(partial(train, "plain.py", plain))[0] == 0
    assert in_child(partial(train, "train.py", killed, _LAST_STEP))[0] == -signal.SIGKILL
    assert not (killed / "weights.pt").exists()
    assert in_child(partial(train, "train.py", killed))[0] == 0, (killed / "output.txt").read_text()
    assert "(step 30, epoch 1, after batch 10)" in (killed / "output.txt").read_text()
    assert (killed / "weights.pt").read_bytes() == (plain / "weights.pt").read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
