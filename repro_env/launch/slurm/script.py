"""The directives of a job script for `sbatch`, from the options, the settings and the template. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from repro_env.launch import nodescript
from repro_env.launch.engine import NodeJob, Resources
from repro_env.launch.slurm.settings import Option, SlurmSettings
from repro_env.schema import codec
from repro_env.schema.errors import UsageError

PREFIX = "#SBATCH"
WARNING = 120
"""Seconds before the time limit at which a job that may be queued again gets SIGUSR1."""
_SIGNAL = re.compile(r"--signal=[^@]*(?:@(\d+))?")
_OWN = {
    "account", "array", "chdir", "error", "export", "export-file", "gpus", "input", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode",
    "output", "parsable", "partition", "requeue", "no-requeue", "test-only", "time", "wait", "wrap",
}  # fmt: skip
"""Options of sbatch that this module sets, or that would change what a job is."""
_GPUS = ("--gres=gpu", "--gpus-per-")


def render(job: NodeJob, resources: Resources, settings: SlurmSettings, template: str) -> str:
    """Return the job script. Raises `UsageError` for a value that `#SBATCH` lines cannot have."""
    return nodescript.render(
        job,
        _directives(job, resources, settings, arguments(settings, template)),
        nodescript.Dialect(PREFIX, task="$SLURM_ARRAY_TASK_ID"),
        starter=_srun(resources, settings),
        warns=settings.requeue,
        template=template,
    )


def arguments(settings: SlurmSettings, template: str) -> list[str]:
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


def requests_gpus(settings: SlurmSettings, template: str) -> bool:
    """Return whether options of sbatch request GPUs."""
    return any(argument.startswith(_GPUS) for argument in arguments(settings, template))


def _srun(resources: Resources, settings: SlurmSettings) -> list[str]:
    """The start of a command that runs once for each task. If one fails, the others are ended.

    Not with `requeue`, because a task that has saved its state ends with a failure too, and others may take longer.
    """
    if resources.nodes * settings.tasks_per_node == 1:
        return []
    kill = f"--kill-on-bad-exit={0 if settings.requeue else 1}"
    # As in the script: the warning must not end a task before it can handle it.
    ignore = ["bash", "-c", "trap '' USR1; exec \"$@\"", "bash"] if settings.requeue else []
    # srun does not take this from sbatch (Slurm 22.05, release notes).
    return ["srun", kill, *([f"--cpus-per-task={math.ceil(resources.cpus)}"] if resources.cpus else []), *ignore]


def _directives(job: NodeJob, resources: Resources, settings: SlurmSettings, arguments: Sequence[str]) -> list[str]:
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
        f'--{name}="{path.replace("%", "%%")}"' for name, path in zip(("output", "error"), nodescript.outputs(job), strict=True)
    ]
    lines += ["--open-mode=append", *(f"--{name}={value}" for name, value in values.items() if value)]
    if resources.nodes * settings.tasks_per_node > 1:
        lines += [f"--nodes={resources.nodes}", f"--ntasks-per-node={settings.tasks_per_node}"]
    if settings.requeue:
        has_signal = any(argument.startswith("--signal") for argument in arguments)
        lines += ["--requeue", *([] if has_signal else [f"--signal=B:USR1@{WARNING}"])]
        _check_warning(resources, arguments)
    return [*lines, *arguments]


def _check_warning(resources: Resources, arguments: Sequence[str]) -> None:
    """Raise `UsageError` if the command would get its warning when the job starts."""
    warning = WARNING
    for match in filter(None, map(_SIGNAL.fullmatch, arguments)):
        warning = int(match[1] or 60)  # the default of sbatch
    if 0 < resources.seconds <= warning:
        what = f"with --job requeue, --time must be longer than the warning, which comes {warning} seconds before the time limit"
        hint = "request more time, or a later warning, for example --job sbatch=--signal=B:USR1@60"
        raise UsageError(what, where=f"--time {resources.seconds}s", hint=hint)
