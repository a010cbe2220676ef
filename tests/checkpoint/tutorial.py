"""The scripts of the tutorial, as they are: without checkpoints, killed in the middle of an epoch, gone on with.

Each process is forked from this one, which has done nothing but import.
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
_KILLED = 37
"""Steps; the epochs have 20."""


def train(script: str, folder: Path, die: int = 0) -> str:
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    sys.stdout = sys.stderr = Path("said.txt").open("a", encoding="utf-8")  # noqa: SIM115 - the process ends with it
    plain = Checkpoint.step

    def step(self: Any, **metrics: float) -> None:
        plain(self, **metrics)
        if self.steps == die:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoint.step = step  # type: ignore[method-assign]
    runpy.run_path(str(_SCRIPTS / script), run_name="__main__")
    return ""


def main(root: Path) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once
    plain, cut = root / "plain", root / "cut"
    assert in_child(partial(train, "plain.py", plain))[0] == 0
    assert in_child(partial(train, "train.py", cut, _KILLED))[0] == -signal.SIGKILL
    assert not (cut / "weights.pt").exists()
    assert in_child(partial(train, "train.py", cut))[0] == 0, (cut / "said.txt").read_text()
    assert "(step 30, epoch 1, after batch 10)" in (cut / "said.txt").read_text()
    assert (cut / "weights.pt").read_bytes() == (plain / "weights.pt").read_bytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
