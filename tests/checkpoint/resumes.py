"""Each kind of loader: a whole training, and one that is killed twice. Each process is forked from this one, which has
done nothing but import."""

from __future__ import annotations

import contextlib
import io
import sys
from functools import partial

import torch

from tests.checkpoint import training
from tests.checkpoint.operations import in_child

_KINDS = (("keyed", 0), ("plain", 0), ("plain", 2), ("generator", 2), ("stateful", 0), ("stateful", 2))


def train(*words: str) -> str:
    out = io.StringIO()
    sys.stderr = io.StringIO()
    with contextlib.redirect_stdout(out):
        training.main(words)
    return out.getvalue().splitlines()[-1]


def main(root: str) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once
    for kind, workers in _KINDS:
        words = ["--loader", kind, "--workers", str(workers), "--epochs", "2", "--count", "96"]
        whole = in_child(partial(train, f"{root}/{kind}-{workers}-whole", *words, "--every", "100"))
        assert whole[0] == 0, (kind, workers, whole)
        cut = f"{root}/{kind}-{workers}-cut"
        for die in ("5", "6", "11"):
            assert in_child(partial(train, cut, *words, "--every", "2", "--die-at", die))[0] == -9, (kind, workers)
        assert in_child(partial(train, cut, *words)) == whole, f"{kind} with {workers} workers goes on with something else"


if __name__ == "__main__":
    main(sys.argv[1])
