"""What every runner is, and what none can give."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from typing import Protocol

from repro_env.io.files import walk
from repro_env.model.errors import DataError, RunError
from repro_env.model.run import Launch, Mount, Outcome

_LOOKED_AT = 20_000
"""Paths of one mount whose modes are looked at before a run."""
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
        if launch.user.uid == 0:
            _check_access(mount)
    if launch.prefix == launch.workspace:
        raise RunError(
            "is both the environment and the source", where=launch.prefix, hint="keep the environment in a folder of its own"
        )


def _check_access(mount: Mount) -> None:
    """Root inside has no more rights than modes give: name a path that it could not use before the run starts.

    Of a large directory the first paths are looked at. Raises `DataError`.
    """
    root = Path(mount.source)
    below = (
        (root / found.path for found in islice(walk(root), _LOOKED_AT) if found.kind in ("file", "dir")) if root.is_dir() else ()
    )
    for path in (root, *below):
        try:
            facts = path.lstat()
        except FileNotFoundError:  # another process has removed it since
            continue
        shift = 6 if facts.st_uid == 0 else 3 if facts.st_gid == 0 else 0
        wanted = (0o5 if stat.S_ISDIR(facts.st_mode) else 0o4) | (0 if mount.read_only or path != root else 0o2)
        if not stat.S_ISSOCK(facts.st_mode) and facts.st_mode >> shift & wanted != wanted:
            verb = "read" if mount.read_only else "used"
            raise DataError(
                f"cannot be {verb} in the run: its owner is uid {facts.st_uid}, and root in a run has no right that the mode does not give",
                where=str(path),
                hint=f"start the run as that user, or change the path's owner or mode (chmod {'o+rX' if mount.read_only else 'o+rwX'})",
            )
