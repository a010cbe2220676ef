"""What all runners share: their parameters, and the outcome of a command."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable
from pathlib import Path

from repro_env.schema.run import Isolation, Launch, Outcome


class Runner(abc.ABC):
    """Runs the command of a launch. Use one object per run."""

    def __init__(self, *, hidden: Collection[str] | None = None) -> None:
        """Set up a runner. `hidden` are secret values that must not be in the logs of what the command prints; None for no logs."""
        self._hidden = hidden

    @abc.abstractmethod
    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """Run a launch and wait for its end. Must be called in the main thread, because it handles signals.

        `directory` is the run's directory; call `workspace.collect` on it afterwards. Raises `SandboxError` if the kernel refuses
        what the runner needs, and `RunError`, `DataError` or `CommandMissingError` if the command cannot be started.
        """


def outcome(
    code: int, isolation: Isolation, means: Iterable[str], *, starved: bool, interrupted: int, timed_out: bool
) -> Outcome:
    """The outcome of a command, from its exit code, or minus its signal.

    `starved`: whether memory ran out while it ran. `interrupted`: the first signal that was passed on to it, or 0.
    """
    return Outcome(
        exit_code=code if code >= 0 else 128 - code,
        signal=max(0, -code),
        interrupted=interrupted,
        out_of_memory=starved and code != 0,
        isolation=isolation,
        means=tuple(means),
        timed_out=timed_out,
    )
