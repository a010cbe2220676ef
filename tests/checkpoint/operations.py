"""Kill a process at each file operation of a save, and check the remaining files. Prints the number of kills.

Each process is forked from this one, which has only imported modules. If the operation is a write, half of it is done.
"""

from __future__ import annotations

import contextlib
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


def train(directory: str, until: int) -> str:
    """Train or resume until this step, with a checkpoint every second step, and return the weights."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    training = checkpoint.Checkpoint(directory, model=model, optimizer=optimizer, every=2, keep=1, signals=False)
    sys.stderr = io.StringIO()
    training.resume()
    while training.steps < until:
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        training.step()
    training.close()
    return repr([value.tolist() for value in model.state_dict().values()])


def start_child(work: Callable[[], str]) -> tuple[int, int]:
    """Fork a process that calls `work`. Returns its PID, and a file descriptor for the result."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        os.setpgid(0, 0)
        try:
            text = work().encode()
            while text:
                text = text[os.write(write, text) :]
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not continue as its parent
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    os.close(write)
    return child, read


def wait_for_child(child: int, read: int) -> tuple[int, str]:
    """Wait for the process. Returns its exit status or minus the signal, and the result."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Workers of a killed process can wait for ever for a message that it wrote in part. They hold the pipes of the test open.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(read) as stream:
        return code, "" if code < 0 else stream.read()


def in_child(work: Callable[[], str]) -> tuple[int, str]:
    return wait_for_child(*start_child(work))


def kill_at(number: int) -> None:
    """Kill this process before its file operation `number`, counted from now on; half of a write is done."""
    count = [0]

    def wrap(name: str) -> None:
        original = getattr(os, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                if name == "write" and len(args[1]) > 1:
                    original(args[0], memoryview(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        setattr(os, name, operation)

    for name in _OPERATIONS:
        wrap(name)


def main(root: str, stride: int) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # makes torch import everything here, once
    expected = in_child(partial(train, f"{root}/complete", 8))
    assert expected[0] == 0, expected
    kills = 0
    for number in range(1, 10_000, stride):
        directory = f"{root}/{number}"
        assert in_child(partial(train, directory, 2))[0] == 0

        def work(number: int = number, directory: str = directory) -> str:
            kill_at(number)
            return train(directory, 4)

        code, _ = in_child(work)
        steps = [saved.step for saved in files.listed(directory)]
        assert steps[0] in (2, 4), steps
        assert set(steps) <= {2, 4}, steps
        for saved in files.listed(directory):
            manifest.check(manifest.read(f"{directory}/{saved.name}"))  # every visible checkpoint is intact
        resumed = in_child(partial(train, directory, 8))
        assert resumed == expected, f"killed at operation {number}: resumes with a different result"
        assert not list(Path(directory).glob(".unfinished*")), "an unfinished checkpoint remains"
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        kills += 1
    print(kills)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
