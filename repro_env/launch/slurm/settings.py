"""What a job can request from Slurm, besides the options of all engines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from repro_env.launch.engine import Settings

_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.@/+,-]+\Z")]
Option = Annotated[str, Meta(pattern=r"\A--[a-z][a-z0-9-]*(?:=[A-Za-z0-9_.,:/@%+*~^=()&|!\[\]-]+)?\Z")]
"""A long option of sbatch, whose value has no spaces, quotes and `#`."""


class SlurmSettings(Settings, frozen=True, kw_only=True):
    """See `Settings`."""

    partition: Annotated[_Name | None, Meta(description="Request this partition. Default: that of the cluster.")] = None
    account: Annotated[_Name | None, Meta(description="Charge the job to this account. Default: that of the cluster.")] = None
    tasks_per_node: Annotated[
        int,
        Meta(ge=1, le=4096, description="Start the command N times on each node, as processes that share the run. Default: 1."),
    ] = 1
    requeue: Annotated[
        bool,
        Meta(
            description="Queue the job again before its time limit ends it, and resume the run. The command gets SIGUSR1 two minutes "
            "before the limit. Default: false."
        ),
    ] = False
    sbatch: Annotated[
        tuple[Option, ...],
        Meta(
            description="Pass a long option to sbatch, such as sbatch=--qos=high. Its value has no spaces and quotes. Repeatable."
        ),
    ] = ()

    @property
    def requeues(self) -> bool:
        """See `Settings`."""
        return self.requeue

    @property
    def processes_per_node(self) -> int:
        """See `Settings`."""
        return self.tasks_per_node
