"""The supervisor of a run's processes: starts them, passes signals on, and waits for the end of all of them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Sequence

from repro_env.model.codec import Frozen
from repro_env.model.errors import SandboxError
from repro_env.model.run import Launch
from repro_env.run import between, channel, inner
from repro_env.run.channel import Failed, Inner, Left, Reader, Refused, Started, Writer
from repro_env.run.signals import Heard, heard
from repro_env.run.stage import Stage
from repro_env.run.terminal import Relay, Terminal

_LONGEST = 64
"""Bytes of the report of the command's end."""
_leaving: list[int] = []
"""Processes between whose run is over and whose mounts may still be coming down: reaped when the next run starts."""


class Supervised(Frozen, frozen=True, kw_only=True):
    status: int
    notes: tuple[str, ...]


def supervise(launch: Launch, stage: Stage) -> Supervised | list[Refused]:
    """Start the processes, pass signals on, wait for the end of all of them. What the kernel refused, if it did."""
    _leaving[:] = [pid for pid in _leaving if not _gone(pid)]
    read, write = os.pipe2(os.O_CLOEXEC)
    ended, end = os.pipe2(os.O_CLOEXEC)
    supervisor = os.getpid()
    try:
        with heard(inner.WATCHED) as came:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, inner.WATCHED)  # the children start with them blocked
            try:
                child = os.fork()
                if child == 0:
                    os.close(read)
                    os.close(ended)
                    between.main(launch, stage, Writer(write), end, came, supervisor=supervisor, mask=set(mask))
                os.close(write)
                os.close(end)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, inner.WATCHED)
                waiting = _Waiting(child, Reader(read), ended, came, stage.terminal, stage.relays)
                messages = waiting.wait()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        os.close(read)
        os.close(ended)
    notes = next((message.notes for message in messages if isinstance(message, Started)), None)
    if notes is None:
        for number in waiting.signals:
            signal.raise_signal(number)  # there was no command to have it: it is for this process itself
    refused = [message for message in messages if isinstance(message, Refused)]
    if refused:
        return refused
    for message in messages:
        if isinstance(message, Failed):
            raise channel.error(message)
    if notes is None:
        raise SandboxError("the run was killed while it was being set up", hint="was memory short? start it again")
    status = waiting.status
    if status is None:
        status = next((message.status for message in messages if isinstance(message, Left)), int(signal.SIGKILL))
        if os.WIFEXITED(status):
            raise SandboxError(
                f"the run's first process, the image's own Python, ended with exit code {os.WEXITSTATUS(status)} before the command did",
                where=stage.interpreter,
                hint="`repro-env exec python -c 'print(1)'` shows whether this Python starts",
            )
    return Supervised(status=status, notes=notes)


class _Waiting:
    """For the end of a run, in the process that started it."""

    def __init__(
        self, child: int, reader: Reader, ended: int, came: Heard, terminal: Terminal | None, relays: Sequence[Relay]
    ) -> None:
        self._child = child
        self._reader = reader
        self._ended = ended
        self._came = came
        self._terminal = terminal
        self._relays = relays
        self._logs = [relay.log for relay in relays if relay.log is not None]
        self._messages: list[channel.Message] = []
        self._target: int | None = None
        self.signals: list[int] = []
        """That came."""
        self.status: int | None = None
        """The command's, as waitpid(2) gives it; None when its first process did not report it."""

    def wait(self) -> list[channel.Message]:
        """Pass signals and keys on. Returns the messages of the other processes, after the command or they have ended."""
        if self._terminal is not None:
            self._terminal.take_over()
        try:
            self._wait()
        finally:
            for relay in self._relays:
                relay.drain()
            if self._terminal is not None:
                self._terminal.give_back()
        return self._messages

    def _wait(self) -> None:
        pending: list[int] = []
        report: int | None = self._ended
        reader: int | None = self._reader.handle
        while True:
            poll = select.poll()
            for handle in (reader, report, self._came.handle):
                if handle is not None:
                    poll.register(handle, select.POLLIN)
            for relay in self._relays:
                relay.watch(poll)
            ready = dict(poll.poll(self._pause()))
            # Before the messages: the end that a signal made is not taken for one that came before it.
            numbers = self._came.take()
            for log in self._logs:
                log.tick()
            pending += [number for number in numbers if number in inner.PASSED]
            self._messages += self._reader.receive()
            if ready.get(self._reader.handle, 0) & select.POLLHUP:
                reader = None
            for relay in self._relays:
                relay.pass_on(ready)
            self._target = next((message.pid for message in self._messages if isinstance(message, Inner)), None)
            if self._target is not None:  # until then no process can receive them
                for number in pending:
                    self._pass_on(number)
                self.signals += pending
                pending.clear()
            if report is not None and ready.get(report):
                report = None
                self.status = _status(os.read(self._ended, _LONGEST))
                if self.status is not None:
                    _leaving.append(self._child)
                    return
            if signal.SIGCHLD in numbers and os.waitpid(self._child, os.WNOHANG)[0]:
                self.signals += pending
                self._messages += self._reader.receive()
                return

    def _pause(self) -> int | None:
        """Milliseconds until a log has something to write."""
        pauses = [pause for log in self._logs if (pause := log.wait()) is not None]
        return int(1000 * min(pauses)) + 1 if pauses else None

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGWINCH and self._terminal is not None:
            self._terminal.resize()
            return
        if number == signal.SIGCONT and self._terminal is not None:
            self._terminal.take_over()
        self._send(number)
        if number == signal.SIGTSTP:
            if self._terminal is not None:
                self._terminal.give_back()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: int) -> None:
        if self._target is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._target, number)


def _status(report: bytes) -> int | None:
    """The command's status from the report of the first process. That is a program of the image, so the report is not trusted."""
    text = report.decode("ascii", "replace").strip()
    return int(text) if text.isdecimal() and int(text) < 1 << 16 else None


def _gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
