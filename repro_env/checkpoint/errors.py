"""What can go wrong with a checkpoint, as one error that says what, where, and what to do next."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint that cannot be written, read, or gone on from exactly."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # An error of one rank is raised on all of them.
        return (_again, (self.what, self.where, self.hint))


class CheckpointWarning(UserWarning):
    """Training goes on, but not from where one would think."""


def _again(what: str, where: str, hint: str) -> CheckpointError:
    return CheckpointError(what, where=where, hint=hint)
