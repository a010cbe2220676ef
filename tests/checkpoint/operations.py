"""Kill a process at each operation on files of one save, and see what is left. Prints how many kills there were.

Each process is forked from this one, which has done nothing but import. A write that is to be the last one is cut in half.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro_env import checkpoint
from repro_env.checkpoint import files, manifest

_OPERATIONS = ("mkdir", "write", "fsync", "rename", "unlink", "rmdir", "open", "close")


def train(folder: str, until: int) -> str:
    """To this step, from wherever the folder allows; a checkpoint each second step. The weights at the end."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    training = checkpoint.Checkpoint(folder, model=model, optimizer=optimizer, every=2, keep=1, signals=False)
    sys.stderr = io.StringIO()
    training.resume()
    while training.steps < until:
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        training.step()
    training.close()
    return repr([value.tolist() for value in model.state_dict().values()])


def begin(work: Callable[[], str]) -> tuple[int, int]:
    """Fork a process that does it: its id, and where it will say what it returned."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            text = work().encode()
            while text:
                text = text[os.write(write, text) :]
            code = 0
        except BaseException:  # noqa: BLE001 - it must not go on as its parent
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    os.close(write)
    return child, read


def end(child: int, read: int) -> tuple[int, str]:
    """What came of it: 0 or minus the signal, and what it returned."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(read) as stream:
        # Workers of a killed process live on for seconds, and have the other end too: that one has said nothing.
        return code, "" if code < 0 else stream.read()


def in_child(work: Callable[[], str]) -> tuple[int, str]:
    return end(*begin(work))


def deadly(at: int) -> None:
    """From now on: the operation number `at` kills this process, before it is done; a write is done half."""
    done = [0]

    def wrap(name: str) -> None:
        plain = getattr(os, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            done[0] += 1
            if done[0] == at:
                if name == "write" and len(args[1]) > 1:
                    plain(args[0], memoryview(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **kwargs)

        setattr(os, name, operation)

    for name in _OPERATIONS:
        wrap(name)


def main(root: str, stride: int) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once
    expected = in_child(partial(train, f"{root}/whole", 8))
    assert expected[0] == 0, expected
    kills = 0
    for at in range(1, 10_000, stride):
        folder = f"{root}/{at}"
        assert in_child(partial(train, folder, 2))[0] == 0

        def work(at: int = at, folder: str = folder) -> str:
            deadly(at)
            return train(folder, 4)

        code, _ = in_child(work)
        names = [one.step for one in files.listed(folder)]
        assert names[0] in (2, 4), names
        assert set(names) <= {2, 4}, names
        for one in files.listed(folder):
            manifest.check(manifest.read(f"{folder}/{one.name}"))  # every checkpoint that is seen is whole
        again = in_child(partial(train, folder, 8))
        assert again == expected, f"killed at operation {at}: goes on with something else"
        assert not list(Path(folder).glob(".unfinished*")), "something is left"
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        kills += 1
    print(kills)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
