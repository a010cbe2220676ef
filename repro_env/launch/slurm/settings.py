"""What a job can request from Slurm, besides the options of all engines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from repro_env.launch.nodes import NodeSettings

PREFIX = "#SBATCH"
"""Of the options of sbatch in a script."""
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.@/+,-]+\Z")]
Option = Annotated[str, Meta(pattern=r"\A--[a-z][a-z0-9-]*(?:=[A-Za-z0-9_.,:/@%+*~^=()&|!\[\]-]+)?\Z")]
"""A long option of sbatch, whose value has no spaces, quotes and `#`."""


class SlurmSettings(NodeSettings, frozen=True, kw_only=True):
    """See `Settings`."""

    partition: Annotated[_Name | None, Meta(description="Request this partition. Default: that of the cluster.")] = None
    account: Annotated[_Name | None, Meta(description="Charge the job to this account. Default: that of the cluster.")] = None
    sbatch: Annotated[
        tuple[Option, ...],
        Meta(description="Pass a long option to sbatch, such as --qos=high, without spaces and quotes. Repeatable."),
    ] = ()
