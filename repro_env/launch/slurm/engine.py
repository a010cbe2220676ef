"""Slurm as an engine: the directives of a job script for `sbatch`, and what the tasks of a step know of each other."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from repro_env.launch import nodescript
from repro_env.launch.engine import NodeJob, Processes, Resources
from repro_env.launch.nodes import WARNING, NodeEngine
from repro_env.launch.slurm.client import Slurm
from repro_env.launch.slurm.settings import PREFIX, Option, SlurmSettings
from repro_env.schema import codec
from repro_env.schema.errors import UsageError

_SIGNAL = re.compile(r"--signal=[^@]*(?:@(\d+))?")
_OWN = {
    "account", "array", "chdir", "error", "export", "export-file", "gpus", "input", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode",
    "output", "parsable", "partition", "requeue", "no-requeue", "test-only", "time", "wait", "wrap",
}  # fmt: skip
"""Options of sbatch that this module sets, or that would change what a job is."""
_GPUS = ("--gres=gpu", "--gpus-per-")
_VARIABLES = (
    "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_LOCALID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_NODELIST", "SLURM_NPROCS", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
    "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE",
)  # fmt: skip
"""The variables with which libraries find the other tasks of a step. They have no secrets."""


class SlurmEngine(NodeEngine[SlurmSettings]):
    """See `Engine`."""

    name = "slurm"
    settings = SlurmSettings
    client_type = Slurm
    job_variables = ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_RESTART_COUNT")
    dialect = nodescript.Dialect(PREFIX, task="$SLURM_ARRAY_TASK_ID", warns=True)

    def requests_gpus(self, settings: SlurmSettings, template: str) -> bool:
        """See `Engine`."""
        return any(argument.startswith(_GPUS) for argument in _arguments(settings, template))

    def check_count(self, count: int, environ: Mapping[str, str]) -> None:
        """See `Engine`."""
        if (largest := Slurm(Path(), environ).largest_array()) and count > largest:
            what = f"--seeds {count} is more than the {largest} tasks that an array job of this cluster can have (MaxArraySize)"
            raise UsageError(what, hint="run the command several times, each with other values of --seed and --seeds")

    def processes_of(self, environ: Mapping[str, str]) -> Processes | None:
        """See `Engine`."""
        if environ.get("SLURM_STEP_NUM_TASKS", "1") == "1":
            return None
        step = f"{environ.get('SLURM_JOB_ID')}.{environ.get('SLURM_STEP_ID')}"
        return Processes(
            names=("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
            key=f"slurm-{environ.get('SLURM_CLUSTER_NAME', '')}-{step}-{environ.get('SLURM_RESTART_COUNT', '0')}",
            machines=environ.get("SLURM_STEP_NUM_NODES", "1"),
            address=environ.get("SLURM_LAUNCH_NODE_IPADDR", "localhost"),
            variables={name: environ[name] for name in _VARIABLES if name in environ},
        )

    def starter(self, job: NodeJob, resources: Resources, settings: SlurmSettings) -> list[str]:  # noqa: ARG002
        """See `NodeEngine`. If a task fails, the others are ended.

        Not with `requeue`, because a task that has saved its state ends with a failure too, and others may take longer.
        """
        if resources.nodes * settings.tasks_per_node == 1:
            return []
        kill = f"--kill-on-bad-exit={0 if settings.requeue else 1}"
        # As in the script: the warning must not end a task before it can handle it.
        ignore = ["bash", "-c", "trap '' USR1; exec \"$@\"", "bash"] if settings.requeue else []
        # srun does not take this from sbatch (Slurm 22.05, release notes).
        return ["srun", kill, *([f"--cpus-per-task={math.ceil(resources.cpus)}"] if resources.cpus else []), *ignore]

    def directives(self, job: NodeJob, resources: Resources, settings: SlurmSettings, template: str) -> list[str]:
        """See `NodeEngine`."""
        arguments = _arguments(settings, template)
        signals = [match for match in map(_SIGNAL.fullmatch, arguments) if match]
        warning = int(signals[-1][1] or 60) if signals else WARNING  # 60 is the default of sbatch
        hint = "request more time, or a later warning, for example --job sbatch=--signal=B:USR1@60"
        settings.check_warning(resources.seconds, warning, hint)
        values = {
            "partition": settings.partition,
            "account": settings.account,
            "time": -(-resources.seconds // 60),  # minutes
            "gpus-per-node": resources.gpus,
            "cpus-per-task": math.ceil(resources.cpus),
            "mem": f"{resources.memory >> 10}K" if resources.memory else "",
        }
        lines = [f"--job-name={job.name}", f"--comment=repro-env:{job.runs[0][0]}"]
        lines += [f"--array=0-{len(job.runs) - 1}"] if len(job.runs) > 1 else []
        lines += [
            f'--{name}="{path.replace("%", "%%")}"'
            for name, path in zip(("output", "error"), nodescript.outputs(job), strict=True)
        ]
        lines += ["--open-mode=append", *(f"--{name}={value}" for name, value in values.items() if value)]
        if resources.nodes * settings.tasks_per_node > 1:
            lines += [f"--nodes={resources.nodes}", f"--ntasks-per-node={settings.tasks_per_node}"]
        if settings.requeue:
            has_signal = any(argument.startswith("--signal") for argument in arguments)
            lines += ["--requeue", *([] if has_signal else [f"--signal=B:USR1@{WARNING}"])]
        return [*lines, *arguments]


def _arguments(settings: SlurmSettings, template: str) -> list[str]:
    """Return the options of sbatch in the settings and in the template. Raises `UsageError` for one that this module decides."""
    found = list(settings.sbatch)
    for line in nodescript.directives_of(template, PREFIX):
        if not codec.fits(line, Option):
            hint = f"write it as one long option, for example {PREFIX} --qos=high; values have no spaces and no quotes"
            raise UsageError("this line is not an option of sbatch", where=f"--job-template: {PREFIX} {line}", hint=hint)
        found.append(line)
    for argument in found:
        name = argument[2:].partition("=")[0]
        if name in _OWN:
            hint = "leave it out, or use the option of `exec`, or --job partition, account, tasks-per-node or requeue"
            raise UsageError(f"repro-env decides the option --{name} of sbatch", where=argument, hint=hint)
    return found
