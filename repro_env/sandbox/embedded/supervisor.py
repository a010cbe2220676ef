"""The supervisor of a run's processes: starts them, forwards signals, and waits until they have ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from functools import partial
from typing import NoReturn

from repro_env.sandbox import kernel
from repro_env.sandbox.embedded import channel, firstprocess
from repro_env.sandbox.embedded.channel import Failed, InitExited, InitStarted, Reader, Refused, Started, Writer
from repro_env.sandbox.embedded.stage import Stage
from repro_env.sandbox.redirection import Relays
from repro_env.sandbox.signals import SignalQueue, queue_signals
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import SandboxError
from repro_env.schema.run import Launch

_MAX_REPORT = 64
"""Bytes that are read of the report of the command's status."""
_unreaped: list[int] = []
"""PIDs of intermediate processes of earlier runs, which may still wait for the unmounting. The next run reaps them."""


class CompletedRun(Frozen, frozen=True, kw_only=True):
    """The end of a command."""

    status: int
    """As returned by waitpid(2)."""
    notes: tuple[str, ...]
    """Deviations, for the record."""


def supervise(launch: Launch, stage: Stage) -> CompletedRun | list[Refused]:
    """Start the processes, forward signals, and wait for their end. Returns the refusals if the kernel refused the strategy."""
    _unreaped[:] = [pid for pid in _unreaped if not _reap(pid)]
    read, write = os.pipe2(os.O_CLOEXEC)
    report, end = os.pipe2(os.O_CLOEXEC)
    supervisor = os.getpid()
    try:
        with queue_signals(firstprocess.WATCHED) as queue:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, firstprocess.WATCHED)  # also blocked in the children
            try:
                child = os.fork()
                if child == 0:
                    os.close(read)
                    os.close(report)
                    _run_intermediate_process(launch, stage, Writer(write), end, queue, supervisor=supervisor, mask=set(mask))
                os.close(write)
                os.close(end)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, firstprocess.WATCHED)
                os.set_blocking(report, False)
                waiter = _Waiter(child, Reader(read), report, queue, stage.relays)
                with stage.relays.connected():
                    waiter.wait()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        os.close(read)
        os.close(report)
    messages = waiter.messages
    notes = next((message.notes for message in messages if isinstance(message, Started)), None)
    if notes is None:
        for number in waiter.signals:
            signal.raise_signal(number)  # the command did not start, so the signal is for this process
    refused = [message for message in messages if isinstance(message, Refused)]
    if refused:
        return refused
    for message in messages:
        if isinstance(message, Failed):
            raise channel.error(message)
    if notes is None:
        raise SandboxError(
            "the processes of the run were killed before the command started",
            hint="check whether the machine ran out of memory, and run the command again",
        )
    status = waiter.status
    if status is None:
        status = next((message.status for message in messages if isinstance(message, InitExited)), int(signal.SIGKILL))
        if os.WIFEXITED(status):
            raise SandboxError(
                "the image's Python, which is the first process of the run, ended before the command "
                f"with exit code {os.WEXITSTATUS(status)}",
                where=stage.interpreter,
                hint="run `repro-env exec python -c 'print(1)'` to check whether this Python starts",
            )
    return CompletedRun(status=status, notes=notes)


def _run_intermediate_process(
    launch: Launch, stage: Stage, out: Writer, end: int, queue: SignalQueue, *, supervisor: int, mask: set[int]
) -> NoReturn:
    """Enter the namespaces, start the first process in them, and wait for it. Called in a newly forked child of the supervisor.

    The first process of the run reports the command's status to `end`. `queue` belongs to the supervisor, so this process
    restores the default signal handlers. `mask` is the caller's signal mask, which the command gets.
    """
    try:
        queue.restore_defaults()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the caller may ignore it, and then waitpid would fail
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # signals of the caller's terminal come from the supervisor instead
        umask = os.umask(0o022)
        stage.enter_namespaces()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # new credentials cleared it
        if os.getppid() != supervisor:
            os._exit(1)
        read, write = os.pipe2(os.O_CLOEXEC)  # the read end becomes readable when this process dies
        child = os.fork()
        if child == 0:
            os.close(write)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if select.select([read], [], [], 0)[0]:
                os._exit(1)  # the parent died before PR_SET_PDEATHSIG took effect
            firstprocess.main(launch, stage, out=out, end=end, mask=mask, umask=umask)
        out.send(InitStarted(child))
        firstprocess.close_all_but({out.handle, write})
        out.send(InitExited(os.waitpid(child, 0)[1]))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  a forked process has no caller to raise to
        out.fail(error)


class _Waiter:
    """Waits in the supervisor for the end of a run."""

    def __init__(self, child: int, reader: Reader, report: int, queue: SignalQueue, relays: Relays) -> None:
        self._child = child
        self._reader = reader
        self._report = report
        self._queue = queue
        self._relays = relays
        self.messages: list[channel.Message] = []
        """All messages of the processes."""
        self.signals: list[int] = []
        """All signals that arrived."""
        self.status: int | None = None
        """The command's status, as returned by waitpid(2); None if the first process of the run did not report it."""

    def wait(self) -> None:
        """Forward signals and keys until the command or the other processes have ended."""
        pending: list[int] = []
        handles = [self._reader.handle, self._report, self._queue.handle]
        while True:
            ready = self._relays.wait(*handles)
            # Take the signals before the messages: if a signal ended the command, it must count as sent before the end.
            numbers = self._queue.take()
            is_over = signal.SIGCHLD in numbers and os.waitpid(self._child, os.WNOHANG)[0] == self._child
            pending += [number for number in numbers if number in firstprocess.FORWARDED]
            self.messages += self._reader.receive()
            if ready.get(self._reader.handle, 0) & select.POLLHUP:
                handles.remove(self._reader.handle)
            target = next((message.pid for message in self.messages if isinstance(message, InitStarted)), None)
            if target is not None:  # before, no process can receive them
                for number in pending:
                    self._relays.forward_signal(number, partial(_send, target))
                self.signals += pending
                pending.clear()
            if self._report in handles and (is_over or self._report in ready):
                handles.remove(self._report)
                with contextlib.suppress(BlockingIOError):
                    self.status = _status(os.read(self._report, _MAX_REPORT))
                if self.status is not None:
                    if not is_over:
                        _unreaped.append(self._child)
                    return
            if is_over:
                self.signals += pending
                self.messages += self._reader.receive()
                return


def _send(target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, number)


def _status(report: bytes) -> int | None:
    """Parse the command's status. Returns None if it is invalid: a program of the image wrote it, so it is not trusted."""
    text = report.decode("ascii", "replace").strip()
    return int(text) if text.isdecimal() and int(text) < 1 << 16 else None


def _reap(pid: int) -> bool:
    """Reap a child if it has ended. Returns whether it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
