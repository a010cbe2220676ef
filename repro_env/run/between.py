"""The process between the supervisor and the first process of a run: it enters the namespaces, and waits."""

from __future__ import annotations

import os
import select
import signal
from typing import NoReturn

from repro_env.model.run import Launch
from repro_env.run import inner, kernel
from repro_env.run.channel import Inner, Left, Writer
from repro_env.run.signals import Heard
from repro_env.run.stage import Stage


def main(launch: Launch, stage: Stage, out: Writer, end: int, came: Heard, *, supervisor: int, mask: set[int]) -> NoReturn:
    """Run this process, in a newly forked child of the supervisor, with `inner.WATCHED` blocked.

    `end` is where the first process reports how the command ended. `came` belongs to the supervisor; this process drops it.
    `mask`: the caller's own, for the command.
    """
    try:
        came.forget()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were still ignored, no child could be waited for
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # the supervisor passes on what a terminal sends to the caller's process group
        umask = os.umask(0o022)
        stage.between()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # again: new credentials clear it
        if os.getppid() != supervisor:
            os._exit(1)
        alive, held = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            os.close(held)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if select.select([alive], [], [], 0)[0]:
                os._exit(1)  # the one above died before it was watched
            inner.main(launch, stage, out=out, end=end, mask=mask, umask=umask)
        out.send(Inner(child))
        inner.close_all_but({out.handle, held})
        out.send(Left(os.waitpid(child, 0)[1]))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  there is no caller above to raise to
        out.fail(error)
