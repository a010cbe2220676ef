"""The exceptions of repro-env. Each class has its own exit code.

Exit code 0 means success and 1 means that the answer is "no"; neither is an error. 70 means a bug in repro-env, with its traceback, and
130 means Ctrl-C. `exec` passes the code of the command through (128 + n if signal n ended it), or ends with 124 if `--time` ended the
command; errors of repro-env itself start with `repro-env: error`.
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
    """The command line is invalid."""

    exit_code = 2


class SpecError(ReproEnvError):
    """A spec or record cannot be read."""

    exit_code = 3


class SpecVersionError(SpecError):
    """A spec or record was written by another version of repro-env."""

    exit_code = 4


class PlatformError(ReproEnvError):
    """Unsupported operating system or architecture."""

    exit_code = 5


class InterpreterError(ReproEnvError):
    """The Python interpreter is missing or does not start."""

    exit_code = 6


class CaptureError(ReproEnvError):
    """The environment cannot be captured, or it or what `push` or `pack` would send contains a secret."""

    exit_code = 7


class SourceError(ReproEnvError):
    """The source is too large, contains a secret, or cannot be read."""

    exit_code = 8


class LockError(ReproEnvError):
    """The answer of an index cannot be used, or the system has no supported package database."""

    exit_code = 9


class NetworkError(ReproEnvError):
    """An index or URL did not answer."""

    exit_code = 10


class ArtifactError(ReproEnvError):
    """An artifact is missing, or does not match its sha256."""

    exit_code = 11


class BuildError(ReproEnvError):
    """The image differs from the spec's expected image."""

    exit_code = 12


class DiskError(ReproEnvError):
    """Not enough disk space or inodes."""

    exit_code = 13


class StoreError(ReproEnvError):
    """The local store cannot be used."""

    exit_code = 14


class SandboxError(ReproEnvError):
    """The kernel or its settings do not allow what the runner needs."""

    exit_code = 15


class RunError(ReproEnvError):
    """A run could not be started."""

    exit_code = 16


class DataError(ReproEnvError):
    """Data is missing, not mounted, or differs from the capture."""

    exit_code = 17


class DriftError(ReproEnvError):
    """The live environment differs from the captured one."""

    exit_code = 18


class RecordError(ReproEnvError):
    """A run does not exist, or would be overwritten."""

    exit_code = 19


class EngineError(ReproEnvError):
    """The container engine is not available, refused a request, or stopped.

    `status` is the HTTP status of its answer, or 0 without an answer.
    """

    exit_code = 20

    def __init__(self, what: str, *, where: str = "", hint: str = "", status: int = 0) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status


class MachineError(ReproEnvError):
    """This machine cannot run the image: driver, GPU, CPU, kernel or disk."""

    exit_code = 21


class PolicyError(ReproEnvError):
    """The run would break a rule of the project's policy.

    `broken`: of each broken rule, the name, the file that it is about, and how.
    """

    exit_code = 22

    def __init__(self, what: str, *, where: str = "", hint: str = "", broken: tuple[tuple[str, str, str], ...] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.broken = broken


class CommandMissingError(ReproEnvError):
    """The command is not in the image; shells use the same code."""

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
