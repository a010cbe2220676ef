"""The exceptions of repro-env. Each class has its own exit code.

    ReproEnvError
    |-- UsageError 2          the command line is invalid
    |-- SpecError 3           a spec or record cannot be read
    |   `-- SpecVersionError 4   ... because it was written by another version of repro-env
    |-- PlatformError 5       unsupported operating system or architecture
    |-- InterpreterError 6    the Python interpreter is missing or does not start
    |-- CaptureError 7        the environment cannot be captured
    |-- SourceError 8         the source is too large, contains a secret, or cannot be read
    |-- LockError 9           the answer of an index cannot be used
    |-- NetworkError 10       an index or URL did not answer
    |-- ArtifactError 11      an artifact is missing, or does not match its sha256
    |-- BuildError 12         the image differs from the spec's expected image
    |-- DiskError 13          not enough disk space or inodes
    |-- StoreError 14         the local store cannot be used
    |-- SandboxError 15       the kernel or its settings do not allow what the runner needs
    |-- RunError 16           a run could not be started
    |-- DataError 17          data is missing, not mounted, or differs from the capture
    |-- DriftError 18         the live environment differs from the captured one
    |-- RecordError 19        a run does not exist, or would be overwritten
    |-- EngineError 20        the container engine is not available, refused a request, or stopped
    |-- MachineError 21         this machine cannot run the image
    `-- CommandMissingError 127  the command is not in the image (the code that shells use)

Exit code 0 means success and 1 means that the answer is "no"; neither is an error. 130 means Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import ClassVar

LONGEST = 1500
"""Maximum length of a message, in characters."""


class ReproEnvError(Exception):
    """An expected failure: what happened, to what, and what to do next."""

    exit_code: ClassVar[int]

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        if len(what) > LONGEST:  # the message of a library may quote a complete damaged file
            what = f"{what[:LONGEST]}…"
        super().__init__(what)
        self.what = what
        """What happened: one sentence without a full stop, of at most `LONGEST` characters and an ellipsis."""
        self.where = where
        """The affected file, URL, distribution or option."""
        self.hint = hint
        """What to do next."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class UsageError(ReproEnvError):
    exit_code = 2


class SpecError(ReproEnvError):
    exit_code = 3


class SpecVersionError(SpecError):
    exit_code = 4


class PlatformError(ReproEnvError):
    exit_code = 5


class InterpreterError(ReproEnvError):
    exit_code = 6


class CaptureError(ReproEnvError):
    exit_code = 7


class SourceError(ReproEnvError):
    exit_code = 8


class LockError(ReproEnvError):
    exit_code = 9


class NetworkError(ReproEnvError):
    exit_code = 10


class ArtifactError(ReproEnvError):
    exit_code = 11


class BuildError(ReproEnvError):
    exit_code = 12


class DiskError(ReproEnvError):
    exit_code = 13


class StoreError(ReproEnvError):
    exit_code = 14


class SandboxError(ReproEnvError):
    exit_code = 15


class RunError(ReproEnvError):
    exit_code = 16


class DataError(ReproEnvError):
    exit_code = 17


class DriftError(ReproEnvError):
    exit_code = 18


class RecordError(ReproEnvError):
    exit_code = 19


class EngineError(ReproEnvError):
    """A failure of a container engine. `status` is the HTTP status of its answer, or 0 without an answer."""

    exit_code = 20

    def __init__(self, what: str, *, where: str = "", hint: str = "", status: int = 0) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


class MachineError(ReproEnvError):
    exit_code = 21


class CommandMissingError(ReproEnvError):
    exit_code = 127


@contextmanager
def os_errors_as(
    error_class: type[ReproEnvError],
    what: str,
    *,
    where: str | PathLike[str] = "",
    default: str | PathLike[str] = "",
    hint: str = "",
) -> Iterator[None]:
    """Turn an `OSError` inside the block into an error that says what failed, and why.

    `where`: the affected file or option. Without it, it is the file that the `OSError` names, or else `default`.
    """
    try:
        yield
    except OSError as error:
        place = str(where or error.filename or default)
        raise error_class(f"{what}: {error.strerror or error}", where=place, hint=hint) from None
