"""What every runner is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from repro_env.model.run import Launch, Outcome


class Runner(Protocol):
    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """Run one launch to its end.

        `folder` is the run's own folder; what the command writes into its workspace lies in `folder/files`
        afterwards (see `workspace.harvest`). Raises `SandboxError` when the kernel refuses what the runner
        needs, `RunError`, `DataError` or `CommandMissingError` when the command could not be started.
        """
        ...
