"""The process between the supervisor and the first process of a run: it enters the name spaces, and tells of signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from repro_env.model.run import Launch
from repro_env.run import inner, kernel
from repro_env.run.channel import Inner, Signalled, Writer
from repro_env.run.signals import Heard
from repro_env.run.stage import Stage


def main(launch: Launch, stage: Stage, out: Writer, came: Heard, *, supervisor: int, mask: set[int]) -> NoReturn:
    """Become it, in a child of the supervisor that was just forked, with `inner.WATCHED` blocked.

    `came` is the supervisor's, and is forgotten here. `mask`: the caller's own, for the command.
    """
    try:
        came.forget()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored as it may have been, nobody could wait for a child
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        stage.between()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # again: new credentials clear it
        if os.getppid() != supervisor:
            os._exit(1)
        umask = os.umask(0o022)
        alive, held = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            os.close(held)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if select.select([alive], [], [], 0)[0]:
                os._exit(1)  # the one above died before it was watched
            inner.main(launch, lambda: stage.inner(out), out=out, mask=mask, umask=umask)
        for number in signal.sigpending() & inner.FORWARDED:
            os.kill(child, number)  # it may have come before there was a child; one that has it already gets it once
        out.send(Inner(child))
        _let_go(keep=(out.handle, held))
        while True:
            number = signal.sigwaitinfo(inner.WATCHED).si_signo
            if number != signal.SIGCHLD:
                out.send(Signalled(number, time.monotonic()))
            elif os.waitpid(child, os.WNOHANG)[0]:
                os._exit(0)
    except BaseException as error:  # noqa: BLE001  there is nobody above to raise to
        out.fail(error)


def _let_go(*, keep: Sequence[int]) -> None:
    """Hold nothing of the caller's open: whoever reads its output waits for the last one that could write there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for handle in [int(item.name) for item in Path("/proc/self/fd").iterdir()]:
        if handle > 2 and handle not in keep:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(handle)
