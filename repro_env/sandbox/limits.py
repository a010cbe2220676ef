"""Limit the CPUs and the memory of a run with control groups (cgroups(7)), and parse the values of the options.

Version 1 of control groups: a group below that of this process, in the hierarchy of each controller. Version 2: a group next to that of
this process, because a group with processes cannot have groups with controllers below it. The limits of the group of this process are
copied, so a run never gets more than its caller. Where no group can be made, CPUs are limited by affinity, and memory is not limited.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from repro_env.sandbox import memory
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import SandboxError, UsageError, os_errors_as
from repro_env.schema.patterns import lazy
from repro_env.schema.run import Limits

_PERIOD = 100_000
"""Microseconds of the period of CPU quotas, as in Docker."""
_LEAST = 4 << 20
_SIZE = lazy(r"(\d{1,15})(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)
_SLURM_TIME = lazy(r"(?:(\d{1,5})-)?(\d{1,7}(?::\d{1,7}){0,2})", re.ASCII)
_DURATION = lazy(r"(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9})s)?", re.ASCII)
_INHERITED = ("cpu.max", "cpuset.cpus", "memory.max", "memory.swap.max", "pids.max")
"""Limits of a group of version 2."""
_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Files that a kernel without accounting of swap does not have."""
_PATIENCE = 10.0
"""Seconds until the kernel has freed the memory of ended processes, at most."""


def parse_memory(text: str) -> int:
    """Parse a size: bytes, or a number with K, M, G or T (powers of 1024). Raises `UsageError`."""
    match = _SIZE.fullmatch(text)
    size = int(match[1]) << " kmgt".index((match[2] or " ").lower()) * 10 if match else 0
    if not _LEAST <= size < 1 << 60:
        raise UsageError(f'--memory must be a size of at least 4M (got "{text}")', hint="for example --memory 8G")
    return size


def parse_time(text: str) -> int:
    """Parse a duration: `90s`, `1h30m`, or as in sbatch `MINUTES`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`.

    Returns seconds. Raises `UsageError`.
    """
    days = hours = minutes = seconds = 0
    if match := _SLURM_TIME.fullmatch(text):
        parts = [int(part) for part in match[2].split(":")]
        days = int(match[1] or 0)
        hours, minutes, seconds = (*parts, 0, 0)[:3] if match[1] or len(parts) == 3 else (0, *(*parts, 0)[:2])
    elif match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 < total < 10**9:
        raise UsageError(
            f'--time must be a duration (got "{text}")', hint="for example --time 90s, --time 1h30m or --time 2:30:00"
        )
    return total


class Enforcement(Frozen, frozen=True, kw_only=True):
    """How limits are enforced on this machine."""

    groups: Mapping[str, Mapping[str, str]] = {}
    """The directory above a group that is made for the run -> file of the group and its text, in the order of writing."""
    affinity: tuple[int, ...] = ()
    """The CPUs of the run if no group can limit them."""
    deviations: tuple[str, ...] = ()
    """What is not enforced as requested, for the user and the record."""


def find(limits: Limits) -> Enforcement:
    """Find out how this machine can enforce limits of CPUs and memory."""
    groups: dict[str, dict[str, str]] = {}
    deviations: list[str] = []
    affinity: tuple[int, ...] = ()
    wanted = {"memory": limits.memory, "cpu": limits.cpus}
    for controller in (name for name, limit in wanted.items() if limit):
        parent, inherited, version = _parent(controller)
        if parent is not None:
            settings = groups.setdefault(str(parent), inherited)
            settings |= _memory(limits.memory, version) if controller == "memory" else _cpu(limits.cpus, version, settings)
        elif controller == "memory":
            deviations.append("memory: not limited, because no control group can be made here")
        else:
            affinity = tuple(sorted(os.sched_getaffinity(0)))[: math.floor(limits.cpus)]
            how = f"limited to {len(affinity)} by affinity" if affinity else "not limited"
            deviations.append(f"cpus: {how}, because no control group can be made here")
    return Enforcement(groups=groups, affinity=affinity, deviations=tuple(deviations))


def _memory(limit: int, version: int) -> dict[str, str]:
    """Without swap: a run that needs it is so slow that it hardly ends."""
    limit = min(limit, memory.limit() or limit)
    if version == 1:
        return {"memory.limit_in_bytes": str(limit), "memory.memsw.limit_in_bytes": str(limit)}
    return {"memory.max": str(limit), "memory.swap.max": "0"}


def _cpu(cpus: float, version: int, inherited: Mapping[str, str]) -> dict[str, str]:
    quota = round(cpus * _PERIOD)
    if version == 1:
        return {"cpu.cfs_period_us": str(_PERIOD), "cpu.cfs_quota_us": str(quota)}
    own, _, period = inherited.get("cpu.max", "").partition(" ")
    if own.isdigit() and period.isdigit():
        quota = min(quota, int(own) * _PERIOD // int(period))
    return {"cpu.max": f"{quota} {_PERIOD}"}


def _parent(controller: str) -> tuple[Path | None, dict[str, str], int]:
    """The directory in which a group with this controller can be made, limits to copy, and the version of control groups."""
    for top, path in memory.directories(controller):
        own = top / path
        parent, inherited, version = own, dict[str, str](), 1
        if (own / "cgroup.subtree_control").exists():
            parent, version = own if own == top else own.parent, 2
            if controller not in _text(parent / "cgroup.subtree_control").split():
                continue
            values = {name: _text(own / name) for name in _INHERITED}
            inherited = {name: text for name, text in values.items() if text and not text.startswith("max")}
        if all(os.access(each, os.W_OK) for each in (parent, parent / "cgroup.procs")):
            return parent, inherited, version
    return None, {}, 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


class Group:
    """The control groups of a run. Its first process must call `join`."""

    def __init__(self, enforcement: Enforcement, directories: list[Path]) -> None:
        self._affinity = enforcement.affinity
        self._directories = directories
        self.deviations = enforcement.deviations
        """See `Enforcement`."""

    def join(self) -> None:
        """Move this process to the groups, where its children start. Raises `SandboxError`."""
        with _attempt():
            for directory in self._directories:
                (directory / "cgroup.procs").write_text("0")
            if self._affinity:
                os.sched_setaffinity(0, self._affinity)

    @property
    def has_starved(self) -> bool:
        """Whether a process of the groups was killed because memory ran out."""
        return any(memory.count_oom_kills(directory) for directory in self._directories)


@contextlib.contextmanager
def group(limits: Limits, run_id: str) -> Iterator[Group]:
    """Make the control groups of a run, and remove them after its end. Raises `SandboxError`."""
    enforcement = find(limits)
    directories: list[Path] = []
    try:
        with _attempt():
            for parent, settings in enforcement.groups.items():
                directory = Path(parent, f"repro-env-{run_id}-{os.getpid()}")  # several processes can belong to a run
                directory.mkdir()
                directories.append(directory)
                for name, text in settings.items():
                    if name not in _SWAP or (directory / name).exists():
                        (directory / name).write_text(text)
        yield Group(enforcement, directories)
    finally:
        deadline = time.monotonic() + _PATIENCE
        for directory in directories:
            while directory.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    directory.rmdir()
                    break
                time.sleep(0.02)


def _attempt() -> AbstractContextManager[None]:
    hint = "leave out --cpus and --memory, or use --runner docker"
    what = "the control group that limits the run cannot be used"
    return os_errors_as(SandboxError, what, default="/sys/fs/cgroup", hint=hint)
