"""The result of one check of the preflight, and the facts that findings judge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from repro_env.compare.preflight.compatibility import compatibility
from repro_env.environment.machine.nvml import Gpu
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Host
from repro_env.schema.frameworks import Frameworks
from repro_env.schema.spec import Spec

Verdict = Literal["ok", "unknown", "numerics may differ", "blocked"]
"""From the best to the worst. `unknown`: a fact is missing, or the compatibility table has no row for it; the command may fail or differ."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class Finding(Frozen, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    captured: str
    """The fact at capture; empty if it was not recorded."""
    here: str
    """The fact on this machine."""
    verdict: Verdict
    why: str = ""
    """The reason, if the verdict is not `ok` or has a limitation."""
    fix: str = ""
    """What the user can do."""
    source: str = ""
    """Where the row of the table is from; empty if it is our own."""


def finding_of(name: str, captured: str, here: str) -> Callable[..., Finding]:
    """Return a function that makes the finding about a fact, from its verdict, its source, the reason and the fix."""

    def result(verdict: Verdict, source: str = "", why: str = "", fix: str = "") -> Finding:
        source = compatibility().sources.get(source, source)
        return Finding(name=name, captured=captured, here=here, verdict=verdict, why=why, fix=fix, source=source)

    return result


class Captured(Frozen, frozen=True, kw_only=True):
    """Facts of a spec."""

    architecture: str
    """`amd64` or `arm64`."""
    host: Host
    frameworks: Frameworks
    packages: dict[str, str]
    """Versions of system and conda packages by name, without the architecture that dpkg adds."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs at capture: those that torch found, or else those of the machine."""
        return tuple(device.name for device in self.frameworks.devices) or self.host.gpus


class Disk(Frozen, frozen=True, kw_only=True):
    """The file system of the store, and what the layers that are missing there need at least."""

    path: str
    free: int
    """Bytes."""
    free_inodes: int
    needed: int
    """Bytes; 0 if the image is in the store."""
    needed_inodes: int


class Machine(Frozen, frozen=True, kw_only=True):
    """Facts about this machine and about the run."""

    architecture: str
    host: Host
    gpus: tuple[Gpu, ...]
    """The GPUs that the run uses. Others do not count."""
    absence: str = ""
    """Why the run has no GPU, as a clause, if the user did not choose this."""
    shm: int
    """Bytes of /dev/shm in the run."""
    disk: Disk
    replays_threads: bool = True
    """Whether the run uses the captured numbers of threads."""


def facts_of(spec: Spec) -> Captured:
    """Return the facts of a spec."""
    observed = spec.observed
    packages = {package.name.partition(":")[0]: package.version for package in observed.system_packages}
    return Captured(
        architecture=spec.identity.platform.architecture,
        host=observed.host,
        frameworks=observed.frameworks,
        packages=packages | {package.name: package.version for package in spec.identity.packages},
    )


def worst(findings: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default="ok")
