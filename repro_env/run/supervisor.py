"""The supervisor of a run's processes: starts them, passes signals on, and waits for the end of all of them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from repro_env.model.codec import Frozen
from repro_env.model.errors import SandboxError
from repro_env.model.run import Launch
from repro_env.run import between, channel, inner
from repro_env.run.channel import Ended, Failed, Inner, Reader, Refused, Signalled, Started, Writer
from repro_env.run.signals import Heard, heard
from repro_env.run.stage import Stage

_GROUP = 0.05
"""Seconds to learn whether a signal went to the whole process group, before it is passed on."""
_RECENT = 1.0
"""Seconds after which such a word is about another signal."""
_leaving: list[int] = []
"""Processes between whose run is over and whose mounts may still be coming down: reaped when the next run starts."""


class Supervised(Frozen, frozen=True, kw_only=True):
    status: int
    notes: tuple[str, ...]


def supervise(launch: Launch, stage: Stage) -> Supervised | list[Refused]:
    """Start the processes, pass signals on, wait for the end of all of them. What the kernel refused, if it did."""
    _leaving[:] = [pid for pid in _leaving if not _gone(pid)]
    read, write = os.pipe2(os.O_CLOEXEC)
    foreground = _foreground()
    supervisor = os.getpid()
    try:
        with heard(inner.WATCHED) as came:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, inner.WATCHED)  # the children start with them blocked
            try:
                child = os.fork()
                if child == 0:
                    os.close(read)
                    between.main(launch, stage, Writer(write), came, supervisor=supervisor, mask=set(mask))
                os.close(write)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, inner.WATCHED)
                waiting = _Waiting(child, Reader(read), came)
                messages = waiting.wait()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        os.close(read)
        _reclaim(foreground)
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
    status = next((message.status for message in messages if isinstance(message, Ended)), int(signal.SIGKILL))
    return Supervised(status=status, notes=notes)


class _Waiting:
    """For the end of a run, in the process that started it."""

    def __init__(self, child: int, reader: Reader, came: Heard) -> None:
        self._child = child
        self._reader = reader
        self._came = came
        self._messages: list[channel.Message] = []
        self.signals: list[int] = []
        """That came."""

    def wait(self) -> list[channel.Message]:
        """Pass on what only this process got. Returns what the others said, once the command is over or they are gone."""
        poll = select.poll()
        poll.register(self._reader.handle, select.POLLIN)
        poll.register(self._came.handle, select.POLLIN)
        pending: list[int] = []
        while True:
            happened = dict(poll.poll())
            # Before the messages: the end that a signal made is not taken for one that came before it.
            numbers = self._came.take()
            pending += [number for number in numbers if number in inner.FORWARDED]
            self._messages += self._reader.receive()
            if happened.get(self._reader.handle, 0) & select.POLLHUP:
                poll.unregister(self._reader.handle)
            target = next((message.pid for message in self._messages if isinstance(message, Inner)), None)
            if target is not None:  # until then there is nobody to have them
                for number in pending:
                    self._pass_on(number, target)
                self.signals += pending
                pending.clear()
            if any(isinstance(message, Ended) for message in self._messages):
                _leaving.append(self._child)
                return self._messages
            if signal.SIGCHLD in numbers and os.waitpid(self._child, os.WNOHANG)[0]:
                self.signals += pending
                return self._messages + self._reader.receive()

    def _pass_on(self, number: int, target: int) -> None:
        now = time.monotonic()
        while not (witness := self._witness(number, since=now - _RECENT)) and (left := now + _GROUP - time.monotonic()) > 0:
            self._messages += self._reader.receive(left)
        if witness:
            self._messages.remove(witness)
            return  # the terminal, or whoever it was, sent it to the whole group: the command has it
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)

    def _witness(self, number: int, *, since: float) -> Signalled | None:
        """The word of the process between that it got this signal too."""
        for message in self._messages:
            if isinstance(message, Signalled) and message.number == number and message.at >= since:
                return message
        return None


def _gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _foreground() -> int | None:
    """The terminal on stdin, when this process group has it."""
    try:
        return 0 if os.tcgetpgrp(0) == os.getpgrp() else None
    except OSError:
        return None


def _reclaim(terminal: int | None) -> None:
    """Take the terminal back from a shell inside that had its own process groups."""
    if terminal is None:
        return
    ignored = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        if os.tcgetpgrp(terminal) != os.getpgrp():
            os.tcsetpgrp(terminal, os.getpgrp())
    signal.signal(signal.SIGTTOU, ignored)
