"""The supervisor of a run's processes: starts them, passes signals on, and waits for the end of all of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Sequence

from repro_env.model.codec import Frozen
from repro_env.model.errors import SandboxError
from repro_env.model.run import Launch
from repro_env.run import between, channel, inner, kernel
from repro_env.run.channel import Ended, Failed, Inner, Reader, Refused, Signalled, Started, Writer
from repro_env.run.stage import Stage

_GROUP = 0.05
"""Seconds to learn whether a signal went to the whole process group, before it is passed on."""
_RECENT = 1.0
"""Seconds after which such a word is about another signal."""
_AWAITED = inner.WATCHED | {signal.SIGIO}
_LOOK = 5.0
"""Seconds after which a child is looked at unasked: its SIGCHLD goes to the process, and another thread may have dropped it."""
_leaving: list[int] = []
"""Processes between whose run is over and whose mounts may still be coming down: reaped when the next run starts."""


class Supervised(Frozen, frozen=True, kw_only=True):
    status: int
    notes: tuple[str, ...]


def supervise(launch: Launch, stage: Stage) -> Supervised | list[Refused]:
    """Start the processes, pass signals on, wait for the end of all of them. What the kernel refused, if it did."""
    _leaving[:] = [pid for pid in _leaving if not _gone(pid)]
    read, write = os.pipe2(os.O_CLOEXEC)
    reader = Reader(read)
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    kernel.owned_by_thread(read)  # another thread of ours blocks nothing: SIGIO would be its end, and with it this process'
    fcntl.fcntl(read, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)  # each message is a SIGIO
    foreground = _foreground()
    supervisor = os.getpid()
    try:
        child = os.fork()
        if child == 0:
            os.close(read)
            between.main(launch, stage, Writer(write), supervisor=supervisor, mask=set(mask))
        os.close(write)
        messages = _wait(child, reader)
    finally:
        os.close(read)
        while signal.sigtimedwait({signal.SIGIO}, 0):
            pass  # it would end this process once it is let through
        _reclaim(foreground)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, children)
    refused = [message for message in messages if isinstance(message, Refused)]
    if refused:
        return refused
    for message in messages:
        if isinstance(message, Failed):
            raise channel.error(message)
    notes = next((message.notes for message in messages if isinstance(message, Started)), None)
    if notes is None:
        raise SandboxError("the run was killed while it was being set up", hint="was memory short? start it again")
    status = next((message.status for message in messages if isinstance(message, Ended)), int(signal.SIGKILL))
    return Supervised(status=status, notes=notes)


def _wait(child: int, reader: Reader) -> list[channel.Message]:
    """Pass on what only this process got. Returns what the others said, once the command is over or they are gone."""
    heard: list[channel.Message] = []
    while True:
        told = signal.sigtimedwait(_AWAITED, _LOOK)
        number = told.si_signo if told else signal.SIGCHLD
        if number == signal.SIGIO:
            heard += reader.receive()
            if any(isinstance(message, Ended) for message in heard):
                _leaving.append(child)
                return heard
            continue
        if number == signal.SIGCHLD:
            if os.waitpid(child, os.WNOHANG)[0]:
                return heard + reader.receive()
            continue
        now = time.monotonic()
        while not (witness := _witness(heard, number, since=now - _RECENT)) and (left := now + _GROUP - time.monotonic()) > 0:
            heard += reader.receive(left)
        if witness:
            heard.remove(witness)
            continue  # the terminal, or whoever it was, sent it to the whole group: the command has it
        target = next((message.pid for message in heard if isinstance(message, Inner)), child)
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, number)


def _gone(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _witness(heard: Sequence[channel.Message], number: int, *, since: float) -> Signalled | None:
    """The word of the process between that it got this signal too."""
    for message in heard:
        if isinstance(message, Signalled) and message.number == number and message.at >= since:
            return message
    return None


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
