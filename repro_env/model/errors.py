"""Every failure of our own: one class per seam, one exit code per class.

    ReproEnvError
    |-- UsageError 2          the command line contradicts itself
    |-- SpecError 3           a spec or record that cannot be read
    |   `-- SpecVersionError 4   ... because it is newer than this program
    |-- PlatformError 5       another operating system or architecture
    |-- InterpreterError 6    no Python there, or one that does not start
    |-- CaptureError 7        the environment cannot be held as it is
    |-- SourceError 8         source over the cap, a secret in it, unreadable
    |-- LockError 9           an index answered with something that cannot be used
    |-- NetworkError 10       an index or URL did not answer
    |-- ArtifactError 11      bytes that are missing or are not the ones named by their sha256
    |-- BuildError 12         the image is not the one the spec expects
    |-- DiskError 13          no room: bytes or inodes
    |-- StoreError 14         the local store cannot be used
    |-- SandboxError 15       the kernel or its rules refuse what the runner needs
    |-- RunError 16           a run that could not be started
    |-- DataError 17          data that is not mounted, missing, or other than at capture
    |-- DriftError 18         the live environment is no longer the captured one
    |-- RecordError 19        a run that is not there, or that would be overwritten
    |-- EngineError 20        the container engine is not there, refuses, or went away
    `-- CommandMissingError 127  the command is not in the image (the shell's own code for it)

0 is good and 1 means "the answer is no"; neither is an error. 130 is Ctrl-C.
"""

from __future__ import annotations

from typing import ClassVar

LONGEST = 1500
"""Characters of a sentence."""


class ReproEnvError(Exception):
    """A failure that is ours to explain: what happened, where, and what to do next."""

    exit_code: ClassVar[int]

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        if len(what) > LONGEST:  # a library's own message may quote the whole of a damaged file
            what = f"{what[:LONGEST]}…"
        super().__init__(what)
        self.what = what
        """One sentence, no full stop; at most `LONGEST` characters and an ellipsis."""
        self.where = where
        """The file, URL, distribution or option that it is about."""
        self.hint = hint
        """What to do next."""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (hashing and unpacking use worker processes).
        return (_again, (type(self), self.what, self.where, self.hint))


def _again(kind: type[ReproEnvError], what: str, where: str, hint: str) -> ReproEnvError:
    return kind(what, where=where, hint=hint)


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
    """`status` is what an engine answered, as HTTP counts; 0 when it did not answer."""

    exit_code = 20

    def __init__(self, what: str, *, where: str = "", hint: str = "", status: int = 0) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return (_answered, (self.what, self.where, self.hint, self.status))


def _answered(what: str, where: str, hint: str, status: int) -> EngineError:
    return EngineError(what, where=where, hint=hint, status=status)


class CommandMissingError(ReproEnvError):
    exit_code = 127
