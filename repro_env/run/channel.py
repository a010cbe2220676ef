"""What the processes of a run report to their supervisor while it is set up: one line of JSON each, through a pipe.

Only code of this package writes there: every writer ends, or closes the pipe, when it starts a program of the image.
"""

from __future__ import annotations

import os
import select
from typing import NoReturn

import msgspec

from repro_env.model import errors
from repro_env.model.errors import ReproEnvError, SandboxError


class Inner(msgspec.Struct, frozen=True, tag="inner"):
    """The first process of the run exists."""

    pid: int
    """As the supervisor's own namespace counts."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The kernel refused a way of mounting; another one may do."""

    what: str
    """`root` or `workspace`."""
    why: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The command is about to start."""

    notes: tuple[str, ...]
    """What was done in another way than usual."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """One of our own errors."""

    kind: str
    """The name of its class."""
    what: str
    where: str
    hint: str


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The first process of the run is over."""

    status: int
    """As waitpid(2) gives it."""


Message = Inner | Refused | Started | Failed | Left

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Writer:
    """The inner end. A line is one write, so lines of several processes do not mix (pipe(7), PIPE_BUF)."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def send(self, message: Message) -> None:
        os.write(self.handle, msgspec.json.encode(message) + b"\n")

    def fail(self, error: BaseException) -> NoReturn:
        """Report an error and end this process."""
        if not isinstance(error, ReproEnvError):
            error = SandboxError(
                f"the run could not be set up: {type(error).__name__}: {error}",
                hint="`repro-env doctor` says what is missing here",
            )
        try:
            self.send(Failed(type(error).__name__, error.what[:1500], error.where[:500], error.hint[:500]))
        finally:
            os._exit(1)


class Reader:
    """The supervisor's end."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._rest = b""
        os.set_blocking(handle, False)

    def receive(self, timeout: float = 0.0) -> list[Message]:
        """What has come; waits at most `timeout` seconds for something to come."""
        if timeout:
            poll = select.poll()  # select(2) knows no handle above 1023
            poll.register(self.handle, select.POLLIN)
            poll.poll(timeout * 1000)
        while True:
            try:
                chunk = os.read(self.handle, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [_decoder.decode(line) for line in lines]


def error(failed: Failed) -> ReproEnvError:
    """The error that an inner process reported."""
    kind: type[ReproEnvError] = getattr(errors, failed.kind, SandboxError)
    return kind(failed.what, where=failed.where, hint=failed.hint)
