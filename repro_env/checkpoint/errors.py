"""The error and the warning of checkpoints."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint cannot be written or read, or training cannot resume from it exactly."""

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)  # all of them: the error of one rank is pickled and sent to all ranks
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} ({self.hint})" if self.hint else text


class CheckpointWarning(UserWarning):
    """Training continues, but not exactly as the user may expect."""
