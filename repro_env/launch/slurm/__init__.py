"""Slurm: a job script for `sbatch`, states from `squeue` or `sacct`, and what the tasks of a step know of each other.

`settings` are what `--job` can set, `script` has the directives, `client` asks Slurm's commands, and `states` parses their answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from repro_env.launch.engine import Client, NodeJob, Processes, Resources, State
from repro_env.launch.nodes import NodeEngine
from repro_env.launch.slurm import script
from repro_env.launch.slurm.client import Slurm
from repro_env.launch.slurm.settings import SlurmSettings
from repro_env.schema import redact
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Job

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
    prefixes = ("SLURM_",)

    def requests_gpus(self, settings: SlurmSettings, template: str) -> bool:
        """See `Engine`."""
        return script.requests_gpus(settings, template)

    def check_count(self, count: int, environ: Mapping[str, str]) -> None:
        """See `Engine`."""
        if (largest := Slurm(Path(), environ).largest_array()) and count > largest:
            what = f"--seeds {count} is more than the {largest} tasks that an array job of this cluster can have (MaxArraySize)"
            raise UsageError(what, hint="run the command several times, each with other values of --seed and --seeds")

    def script(self, job: NodeJob, resources: Resources, settings: SlurmSettings, template: str = "") -> str:
        """See `NodeEngine`."""
        return script.render(job, resources, settings, template)

    def states(self, jobs: Sequence[tuple[Client, str]]) -> list[State]:
        """See `Engine`. Slurm is asked once for all."""
        clients = cast("Sequence[tuple[Slurm, str]]", jobs)
        found = clients[0][0].states({client.directory: job for client, job in clients}) if clients else {}
        return [found[client.directory] for client, _ in clients]

    def job_of(self, environ: Mapping[str, str]) -> Job | None:
        """See `Engine`."""
        if not (job := environ.get("SLURM_JOB_ID", "")).isdecimal():
            return None
        restarts = environ.get("SLURM_RESTART_COUNT", "")
        node = redact.line(environ.get("SLURMD_NODENAME", ""))
        return Job(engine=self.name, id=job, node=node, restarts=int(restarts) if restarts.isdecimal() else 0)

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


ENGINE = SlurmEngine()
