"""The supervisor of a run's processes: starts them, and waits until they have ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from repro_env.sandbox import kernel, session
from repro_env.sandbox.embedded import firstprocess
from repro_env.sandbox.embedded.stage import Stage
from repro_env.sandbox.limits import Group
from repro_env.sandbox.session import Connection, SignalQueue, queue_signals
from repro_env.schema.run import Launch


def supervise(launch: Launch, stage: Stage, group: Group, started: Callable[[int], None] | None) -> session.Result:
    """Start the processes, and attend to them until they have ended. Raises `ReproEnvError` if the command cannot be started.

    `started` is as in `session.attend`.
    """
    connection, other = session.connect()
    supervisor = os.getpid()
    with queue_signals() as queue, connection:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, firstprocess.WATCHED)  # also blocked in the children
        try:
            child = os.fork()
            if child == 0:
                connection.close()
                _run_intermediate_process(launch, stage, group, other, queue, supervisor=supervisor, mask=set(mask))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        other.close()
        try:
            return session.attend(connection, queue, stage.streams, launch.limits, started)
        finally:
            connection.close()
            with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD
                os.waitpid(child, 0)


def _run_intermediate_process(
    launch: Launch, stage: Stage, group: Group, out: Connection, queue: SignalQueue, *, supervisor: int, mask: set[int]
) -> NoReturn:
    """Enter the namespaces, start the first process in them, and wait for it. Called in a newly forked child of the supervisor.

    `queue` belongs to the supervisor, so this process restores the default signal handlers. `mask` is the caller's signal mask,
    which the command gets.
    """
    try:
        queue.restore_defaults()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the caller may ignore it, and then waitpid would fail
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # signals of the caller's terminal come from the supervisor instead
        umask = os.umask(0o022)
        group.join()
        stage.enter_namespaces()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # new credentials cleared it
        if os.getppid() != supervisor:
            os._exit(1)
        read, write = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            os.close(write)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if not os.read(read, 1):
                os._exit(1)  # the parent died before PR_SET_PDEATHSIG took effect
            firstprocess.main(launch, stage, out=out, mask=mask, umask=umask)
        session.send(out, session.Forked(child))
        os.write(write, b"1")
        firstprocess.close_all_but({write})
        os.waitpid(child, 0)
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  a forked process has no caller to raise to
        firstprocess.fail(out, error)
