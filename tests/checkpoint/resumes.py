"""Compare, for each kind of loader, an uninterrupted training with one that is killed several times.

Each process is forked from this one, which has only imported modules.
"""

from __future__ import annotations

import contextlib
import io
import sys
from functools import partial

import torch

from tests.checkpoint import training
from tests.checkpoint.operations import in_child

_KINDS = (("keyed", 0), ("plain", 0), ("plain", 2), ("generator", 2), ("stateful", 0), ("stateful", 2))


def train(*arguments: str) -> str:
    out = io.StringIO()
    sys.stderr = io.StringIO()
    with contextlib.redirect_stdout(out):
        training.main(arguments)
    return out.getvalue().splitlines()[-1]


def main(root: str) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # makes torch import everything here, once
    for kind, workers in _KINDS:
        options = ["--loader", kind, "--workers", str(workers), "--epochs", "2", "--count", "96"]
        expected = in_child(partial(train, f"{root}/{kind}-{workers}-complete", *options, "--every", "100"))
        assert expected[0] == 0, (kind, workers, expected)
        directory = f"{root}/{kind}-{workers}-killed"
        for die in ("5", "6", "11"):
            assert in_child(partial(train, directory, *options, "--every", "2", "--die-at", die))[0] == -9, (kind, workers)
        assert in_child(partial(train, directory, *options)) == expected, (
            f"{kind} with {workers} workers resumes with a different result"
        )


if __name__ == "__main__":
    main(sys.argv[1])
