"""The request for a container (`POST /containers/create`)."""

from __future__ import annotations

import os
import resource
from typing import Any

from repro_env.sandbox import fabric, handover, memory
from repro_env.sandbox.embedded import rootfs
from repro_env.sandbox.image import Mounts
from repro_env.schema.run import Launch

LABEL = "io.repro-env.run"
"""Label of every container that we create. Its value is the ID of the run."""
_WRITABLE = "rw,exec,nosuid,nodev,mode=1777"


def to_container(launch: Launch, image: str, mounts: Mounts, interpreter: str, *, keep_id: bool) -> dict[str, Any]:
    """The request that creates the container of a launch, with the limits of this process.

    It does not contain the command, its variables and its working directory, because engines store what they are sent.
    `init.py`, which the image's `interpreter` runs, gets these from this process instead. `image`: the engine's ID of the image.
    `keep_id`: whether a rootless engine (Podman) must be asked to keep the caller's uid inside.
    """
    cpus = os.sched_getaffinity(0)
    limit = min((limit for limit in (memory.limit(), launch.limits.memory) if limit), default=0)
    host: dict[str, object] = {
        "Mounts": [
            {
                "Type": "bind",
                "Source": mounts[target][0],
                "Target": target,
                "ReadOnly": mounts[target][1],
                "BindOptions": {"Propagation": "rprivate"},
            }
            for target in sorted(mounts, key=lambda path: (path.count("/"), path))
        ],
        "Tmpfs": {"/run": _WRITABLE},
        "ShmSize": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2,
        "ReadonlyRootfs": True,  # what the command wrote there would be lost
        "CapDrop": ["ALL"],
        # The bind mounts keep their SELinux labels.
        "SecurityOpt": ["no-new-privileges", "label=disable"],
        "NetworkMode": "host" if launch.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "MaskedPaths": list(rootfs.HIDDEN),
        "GroupAdd": [str(group) for group in sorted(set(os.getgroups()) - {launch.user.gid})],
        "LogConfig": {"Type": "none", "Config": {}},
        "Init": False,  # init.py does this, and also reports how the command ended
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
    }
    if limit:
        host["Memory"] = limit
    if launch.limits.memory:
        host["MemorySwap"] = limit  # of both together, so that the run has no swap
    if launch.limits.cpus:
        host["NanoCpus"] = round(launch.limits.cpus * 1_000_000_000)
    if len(cpus) < (os.cpu_count() or 0):
        host["CpusetCpus"] = ",".join(map(str, sorted(cpus)))
    if launch.gpus.nodes:  # not as a request for GPUs, which needs NVIDIA's runtime, and which Podman ignores
        host["Devices"] = [
            {"PathOnHost": node.source, "PathInContainer": node.target, "CgroupPermissions": "rw"} for node in launch.gpus.nodes
        ]
    if any(node.target.startswith(f"{fabric.DIRECTORY}/") for node in launch.gpus.nodes):
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]  # of this process, because not every engine may set a higher one
        host["Ulimits"] = [{"Name": "memlock", "Soft": locked, "Hard": locked}]
    if keep_id:
        host["UsernsMode"] = "keep-id"
    return {
        "Image": image,
        "Entrypoint": handover.command(interpreter),
        "Cmd": [],
        "User": f"{launch.user.uid}:{launch.user.gid}",
        "WorkingDir": "/",
        "Hostname": launch.hostname,
        "Labels": {LABEL: launch.run_id},
        "HostConfig": host,
    }
