"""Messages from the processes of a run to their supervisor: lines of JSON in a pipe.

Only code of this package writes to the pipe: each writer exits, or closes it, before a program of the image starts.
"""

from __future__ import annotations

import os
from typing import NoReturn

import msgspec

from repro_env.schema import errors
from repro_env.schema.errors import ReproEnvError, SandboxError


class InitStarted(msgspec.Struct, frozen=True, tag="init started"):
    """The first process of the run was forked."""

    pid: int
    """In the PID namespace of the supervisor."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The kernel refused a way of mounting; another way may work."""

    what: str
    """`root` or `workspace`."""
    why: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The command is about to start."""

    notes: tuple[str, ...]
    """What deviates from a usual run, for the record."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A `ReproEnvError` was raised."""

    kind: str
    """The name of its class."""
    what: str
    where: str
    hint: str


class InitExited(msgspec.Struct, frozen=True, tag="init exited"):
    """The first process of the run exited."""

    status: int
    """As returned by waitpid(2)."""


Message = InitStarted | Refused | Started | Failed | InitExited

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Writer:
    """The write end of the pipe. Each line is one write(2), so lines of several processes do not mix (pipe(7), PIPE_BUF)."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def send(self, message: Message) -> None:
        os.write(self.handle, msgspec.json.encode(message) + b"\n")

    def fail(self, error: BaseException) -> NoReturn:
        """Report an error and end this process."""
        if not isinstance(error, ReproEnvError):
            error = SandboxError(
                f"the run could not be set up: {type(error).__name__}: {error}",
                hint="run `repro-env doctor` to see what this machine lacks",
            )
        try:
            self.send(Failed(type(error).__name__, error.what[:1500], error.where[:500], error.hint[:500]))
        finally:
            os._exit(1)


class Reader:
    """The read end of the pipe, in the supervisor."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._buffer = b""
        os.set_blocking(handle, False)

    def receive(self) -> list[Message]:
        """The messages that have arrived. Does not wait."""
        while True:
            try:
                chunk = os.read(self.handle, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                break
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        return [_decoder.decode(line) for line in lines]


def error(failed: Failed) -> ReproEnvError:
    """The exception that a process of the run reported."""
    kind: type[ReproEnvError] = getattr(errors, failed.kind, SandboxError)
    return kind(failed.what, where=failed.where, hint=failed.hint)
