"""What a job can request from Grid Engine, besides the options of all engines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from repro_env.launch.nodes import NodeSettings

_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.@][A-Za-z0-9_.@-]*\Z")]


class GridEngineSettings(NodeSettings, frozen=True, kw_only=True):
    """See `Settings`."""

    queue: Annotated[_Name | None, Meta(description="Request this queue. Default: any.")] = None
    project: Annotated[_Name | None, Meta(description="Charge the job to this project. Default: that of the user.")] = None
    parallel_environment: Annotated[
        _Name, Meta(description="The parallel environment with slots of one node, for --cpus and tasks-per-node. Default: smp.")
    ] = "smp"
    gpu_resource: Annotated[_Name, Meta(description="The resource that counts GPUs, for --gpus. Default: gpu.")] = "gpu"
    memory_resource: Annotated[
        _Name, Meta(description="The resource that --memory requests, divided by the slots, such as h_vmem. Default: mem_free.")
    ] = "mem_free"
    show_variables: Annotated[
        bool, Meta(description="Pass the variables of --env, which all users can read (`qstat -j`). Default: false.")
    ] = False
