"""SIGTERM and SIGUSR1."""

# ruff: noqa: PT017, BLE001

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from repro_env.checkpoint import Checkpoint, files
from tests.checkpoint.checks.common import tiny


def a_signal_saves_after_the_step_and_exits(directory: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGUSR1):
        model, optimizer = tiny()
        training = Checkpoint(directory / str(int(number)), model=model, optimizer=optimizer)
        try:
            for _ in training.epochs(2):
                for _batch in training.batches(DataLoader(TensorDataset(torch.arange(6.0)), num_workers=1)):
                    if training.steps == 3:
                        os.kill(os.getpid(), number)
                    training.step()
        except SystemExit as end:
            assert end.code == 128 + number
        else:
            raise AssertionError("the process did not exit")
        finally:
            training.close()
        assert [saved.step for saved in files.listed(training.directory)] == [4]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def a_signal_to_the_process_group_saves_completed_steps(directory: Path) -> None:
    """The signal kills the workers, but the completed steps are saved."""
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        code = 99
        try:
            model, _ = tiny()
            training = Checkpoint(directory / "c", model=model)
            for _ in training.epochs(1):
                for _batch in training.batches(DataLoader(TensorDataset(torch.arange(40.0)), num_workers=2)):
                    training.step()
                    if training.steps == 3:
                        os.killpg(0, signal.SIGTERM)
        except SystemExit as end:
            code = int(str(end.code))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 128 + signal.SIGTERM
    checkpoints = files.listed(str(directory / "c"))
    assert len(checkpoints) == 1
    assert checkpoints[0].step in range(3, 10)


def child_processes_do_not_handle_the_signals(directory: Path) -> None:
    import multiprocessing
    import time

    training = Checkpoint(directory / "c")
    context = multiprocessing.get_context("fork")
    child = context.Process(target=time.sleep, args=(60,))
    child.start()
    assert child.pid
    os.kill(child.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert child.is_alive(), "SIGUSR1 ended the child"
    child.terminate()
    child.join(100)
    assert child.exitcode == -signal.SIGTERM
    training.close()


def a_checkpoint_in_a_thread_warns_that_signals_are_not_handled(directory: Path) -> None:
    messages: list[str] = []

    def work() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            Checkpoint(directory / "c")
        messages.extend(str(warning.message) for warning in caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert any("main thread" in message for message in messages)
