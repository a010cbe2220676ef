"""What all runners share: their parameters, the outcome of a command, and checks before it starts."""

from __future__ import annotations

import abc
import os
import stat
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path

from repro_env.io.files import walk
from repro_env.schema.errors import DataError, RunError
from repro_env.schema.run import Isolation, Launch, Mount, Outcome

_MAX_CHECKED = 20_000
"""How many paths of a mount are checked for access before a run."""
_RESERVED = ("/", "/proc", "/sys", "/dev")


class Runner(abc.ABC):
    """Runs the command of a launch. Use one object per run."""

    def __init__(self, *, hidden: Collection[str] | None = None) -> None:
        """Set up a runner. `hidden` are secret values that must not be in the logs of what the command prints; None for no logs."""
        self._hidden = hidden

    @abc.abstractmethod
    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """Run a launch and wait for its end. Must be called in the main thread, because it handles signals.

        `directory` is the run's directory; call `workspace.collect` on it afterwards. Raises `SandboxError` if the kernel refuses what the runner needs, and `RunError`,
        `DataError` or `CommandMissingError` if the command cannot be started.
        """


def outcome(code: int, isolation: Isolation, means: Iterable[str], *, starved: bool) -> Outcome:
    """The outcome of a command, from its exit code, or minus its signal. `starved`: whether memory ran out while it ran."""
    return Outcome(
        exit_code=code if code >= 0 else 128 - code,
        signal=max(0, -code),
        out_of_memory=starved and code != 0,
        isolation=isolation,
        means=tuple(means),
    )


def check(launch: Launch) -> None:
    """Check that a launch is possible with any runner. Raises `RunError`, `DataError`."""
    if (launch.user.uid, launch.user.gid) != (os.geteuid(), os.getegid()):
        raise RunError(
            f"this run needs uid {launch.user.uid} and gid {launch.user.gid}, but runs always have the caller's",
            where=f"run {launch.run_id}",
            hint="start it as that user",
        )
    for mount in launch.mounts:
        if mount.target in _RESERVED:
            raise RunError(
                "a mount here would hide files that every program needs",
                where=mount.target,
                hint="choose another target with SRC:DST",
            )
        if not os.path.lexists(mount.source):
            raise DataError("this path does not exist", where=mount.source, hint="check the path, or mount the disk that has it")
        if launch.user.uid == 0:
            _check_access(mount)
    if launch.prefix == launch.workspace:
        raise RunError(
            "this directory is both the environment and the source",
            where=launch.prefix,
            hint="keep the environment in a separate directory",
        )


def _check_access(mount: Mount) -> None:
    """Raise `DataError` for a path that root could not use in the run, where it has no capabilities.

    In a large directory only the first paths are checked.
    """
    root = Path(mount.source)
    below = (
        (root / found.path for found in islice(walk(root), _MAX_CHECKED) if found.kind in ("file", "dir"))
        if root.is_dir()
        else ()
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
                f"this path cannot be {verb} in the run: it belongs to uid {facts.st_uid}, and root in a run needs permission by its mode",
                where=str(path),
                hint=f"start the run as that user, or change the path's owner or mode (chmod {'o+rX' if mount.read_only else 'o+rwX'})",
            )
