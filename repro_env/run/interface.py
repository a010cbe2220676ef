"""What every runner is, and what none can give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from repro_env.model.errors import DataError, RunError
from repro_env.model.run import Launch, Outcome

_RESERVED = ("/", "/proc", "/sys", "/dev")


class Runner(Protocol):
    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """Run one launch to its end.

        `folder` is the run's own folder; what the command writes into its workspace lies in `folder/files`
        afterwards (see `workspace.harvest`). Raises `SandboxError` when the kernel refuses what the runner
        needs, `RunError`, `DataError` or `CommandMissingError` when the command could not be started.
        """
        ...


def check(launch: Launch) -> None:
    """Refuse what no runner can give. Raises `RunError`, `DataError`."""
    if (launch.user.uid, launch.user.gid) != (os.geteuid(), os.getegid()):
        raise RunError(
            f"asks for uid {launch.user.uid} and gid {launch.user.gid}, and only the caller's can be had",
            where=f"run {launch.run_id}",
            hint="start it as that user",
        )
    for mount in launch.mounts:
        if mount.target in _RESERVED:
            raise RunError("would hide what every program needs", where=mount.target, hint="name another place with SRC:DST")
        if not os.path.lexists(mount.source):
            raise DataError("is not there", where=mount.source)
    if launch.prefix == launch.workspace:
        raise RunError(
            "is both the environment and the source", where=launch.prefix, hint="keep the environment in a folder of its own"
        )
