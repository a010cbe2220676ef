"""Judge whether this machine can run the image of a spec before anything is fetched, for `exec` and `doctor SPEC`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.compare.preflight import finding
from repro_env.compare.preflight.finding import Disk, Finding, Machine
from repro_env.compare.preflight.judge import judge
from repro_env.delivery.builder import layers
from repro_env.delivery.builder.layers import Task
from repro_env.environment.machine import host as machine
from repro_env.environment.machine import nvml
from repro_env.environment.machine.nvml import Gpu, Nvidia
from repro_env.io import files
from repro_env.io.machine import ARCHITECTURES
from repro_env.sandbox import gpus as sandbox_gpus
from repro_env.schema.errors import MachineError
from repro_env.schema.patterns import lazy
from repro_env.schema.progress import Tell
from repro_env.schema.run import GpuFact
from repro_env.schema.runners import DEFAULT, TRAITS, RunnerName
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

_INDEX = lazy(r"nvidia\.com/gpu=(\d+)")
"""The name of a GPU that only a CDI spec lists. `nvidia-ctk` counts as NVML does."""


def examine_spec(spec: Spec, store: Store) -> tuple[Finding, ...]:
    """Judge this machine for a run with the default options. Raises `BuildError`, `RunError`."""
    if not finding.facts_of(spec).gpus:
        return examine(spec, store)
    here = sandbox_gpus.look(os.environ)
    return examine(spec, store, gpus=sandbox_gpus.present(here).facts, absence=sandbox_gpus.absence(here))


def examine(
    spec: Spec,
    store: Store,
    *,
    gpus: Sequence[GpuFact] = (),
    absence: str = "",
    runner: RunnerName = DEFAULT,
    replays_threads: bool = True,
) -> tuple[Finding, ...]:
    """Judge this machine for a run of the spec. Raises `BuildError` if the spec contradicts itself.

    `gpus`: those that the run uses. `absence`: why there are none. `replays_threads`: whether it uses the captured numbers of threads.
    """
    host, traits = machine.host(), TRAITS[runner]
    nvidia = nvml.read() if gpus else Nvidia()
    facts = Machine(
        architecture=ARCHITECTURES.get(host.machine, host.machine),
        host=msgspec.structs.replace(host, nvidia=host.nvidia or nvidia.driver),  # WSL has no /proc/driver/nvidia
        gpus=tuple(_identify(gpu, nvidia) for gpu in gpus),
        absence=absence,
        shm=host.memory // 2 if traits.has_own_root else files.free(Path("/dev/shm"))[0],  # noqa: S108
        disk=_disk(layers.tasks(spec) if traits.needs_image else [], store),
        replays_threads=replays_threads,
    )
    return judge(finding.facts_of(spec), facts)


def _identify(gpu: GpuFact, nvidia: Nvidia) -> Gpu:
    """Find a GPU of the run among those that NVML reports: by its model, or by the index in NVIDIA's CDI specs."""
    index = _INDEX.fullmatch(gpu.name)
    if index is not None and int(index[1]) < len(nvidia.gpus):
        return nvidia.gpus[int(index[1])]
    capability = next((found.capability for found in nvidia.gpus if found.name == gpu.name), "")
    return Gpu(gpu.name, capability, is_model="/gpu=" not in gpu.name and not gpu.mig)


def _disk(tasks: Sequence[Task], store: Store) -> Disk:
    """What the layers need at least: one of packages is larger than their archives, and its files are not counted."""
    missing = [task for task in tasks if store.layers.path(task.diff_id) is None]
    free, inodes = files.free(store.root)
    return Disk(
        path=str(store.root),
        free=free,
        free_inodes=inodes,
        needed=sum(task.size for task in missing),
        needed_inodes=sum(task.tree.files for task in missing if task.tree is not None),
    )


def require(findings: tuple[Finding, ...], spec: Path, *, here: Path, tell: Tell) -> None:
    """Raise `MachineError` for a check that is blocked, and warn of the worst of the others. `spec`: its directory."""
    verdict = finding.worst(findings)
    if verdict == "ok":
        return
    name = spec.relative_to(here) if spec.is_relative_to(here) else spec
    first = next(item for item in findings if item.verdict == verdict)
    if verdict == "blocked":
        raise MachineError(
            f"{first.why} (here: {first.here}; in the spec: {first.captured})",
            where="this machine",
            hint=f"{first.fix}; `repro-env doctor {name}` shows all findings",
        )
    effect = "numbers may differ from the capture" if verdict == "numerics may differ" else "the run may fail or differ"
    tell.warn(
        f"{effect}: {first.why} ({first.name} here: {first.here}; captured: {first.captured}); `repro-env doctor {name}` shows all"
    )
