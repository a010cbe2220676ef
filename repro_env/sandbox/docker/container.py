"""Convert a launch to the engine's request for a container (`POST /containers/create`). Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from repro_env.oci import paths as layout
from repro_env.oci.paths import is_below
from repro_env.sandbox.embedded import rootfs
from repro_env.schema.codec import Frozen
from repro_env.schema.run import Launch
from repro_env.schema.text import AbsPath, Line

CONTROL = "/.repro-env/control"
"""Where `Resources.control` is mounted in the container."""
SOCKET = "supervisor"
"""The name of the socket in it to which `init.py` connects."""
LABEL = "io.repro-env.run"
"""Label of every container that we create. Its value is the ID of the run."""
_INIT = f"{layout.SEEDS}/guest/init.py"
RUN = "/run"
_WRITABLE = "rw,exec,nosuid,nodev,mode=1777"


class Bind(Frozen, frozen=True, kw_only=True):
    """A bind mount: a path of this machine in the container."""

    source: AbsPath
    target: AbsPath
    read_only: bool


class Resources(Frozen, frozen=True, kw_only=True):
    """What was read or created on this machine for the container."""

    control: AbsPath
    """A directory with the socket to which `init.py` connects."""
    interpreter: AbsPath
    """Path in the image of its Python, which runs `init.py`."""
    workspace: AbsPath
    """The writable copy of the source."""
    binds: tuple[Bind, ...]
    """Writable directories with the image's files in them, and trees of the image at their captured paths."""
    groups: tuple[int, ...]
    """The caller's supplementary groups."""
    shm_size: int
    """Bytes of /dev/shm."""
    memory: int
    """Bytes that the caller's control group allows; 0 for no limit."""
    cpus: Line
    """The CPUs that the caller may use, such as `0,1,7`; empty for all."""
    keep_id: bool
    """Whether a rootless engine (Podman) must be asked to keep the caller's uid inside."""


def to_container(launch: Launch, resources: Resources) -> dict[str, object]:
    """The request that creates the container of a launch.

    It does not contain the command, its variables and its working directory, because engines store what they are sent.
    `init.py` gets these from this process instead.
    """
    binds = {bind.target: bind for bind in resources.binds}
    ours = (
        Bind(source=resources.workspace, target=launch.workspace, read_only=False),
        *(Bind(source=mount.source, target=mount.target, read_only=mount.read_only) for mount in launch.mounts),
        Bind(source=launch.tools, target=layout.SEEDS, read_only=True),
        Bind(source=launch.notes, target=layout.NOTES, read_only=False),
        Bind(source=resources.control, target=CONTROL, read_only=True),
    )
    binds |= {bind.target: bind for bind in ours if bind.target not in binds}
    host: dict[str, object] = {
        "Mounts": [_mount(binds[target]) for target in sorted(binds, key=lambda path: (depth(path), path))],
        "Tmpfs": {RUN: _WRITABLE},
        "ShmSize": resources.shm_size,
        "ReadonlyRootfs": True,  # what the command wrote there would be lost
        "CapDrop": ["ALL"],
        # The bind mounts keep their SELinux labels.
        "SecurityOpt": ["no-new-privileges", "label=disable"],
        "NetworkMode": "host" if launch.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "MaskedPaths": list(rootfs.HIDDEN),
        "GroupAdd": [str(group) for group in resources.groups],
        "LogConfig": {"Type": "none", "Config": {}},
        "Init": False,  # init.py does this, and also reports how the command ended
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no"},
    }
    if resources.memory:
        host["Memory"] = resources.memory
    if resources.cpus:
        host["CpusetCpus"] = resources.cpus
    if launch.gpus:
        count = -1 if launch.gpus == "all" else launch.gpus
        host["DeviceRequests"] = [{"Driver": "", "Count": count, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}]
    if resources.keep_id:
        host["UsernsMode"] = "keep-id"
    return {
        "Image": launch.image,
        "Entrypoint": [resources.interpreter, "-I", "-S", "-B", _INIT, "start", f"{CONTROL}/{SOCKET}"],
        "Cmd": [],
        "User": f"{launch.user.uid}:{launch.user.gid}",
        "WorkingDir": "/",
        "Hostname": launch.hostname,
        "Labels": {LABEL: launch.run_id},
        "HostConfig": host,
    }


def _mount(bind: Bind) -> dict[str, object]:
    return {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


def depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def name(launch: Launch) -> str:
    return f"repro-env-{launch.run_id}"


def writable_directories(launch: Launch, links: Sequence[str], missing: Sequence[str] = ()) -> tuple[str, ...]:
    """Directories of the container that must be covered with writable ones, outermost first.

    Besides HOME and the temporary directories these are the parents of `links`: targets of `launch.trees` that are symlinks in
    the image, where a mount would follow the link. `missing` are directories that the image lacks and the user may write.
    """
    home, workspace = launch.user.home, launch.workspace
    paths = ["/tmp", "/var/tmp", *missing]  # noqa: S108
    mounts = (workspace, *(mount.target for mount in launch.mounts))
    if not any(is_below(home, path) for path in mounts):
        paths.append(home)
    paths += [posixpath.dirname(path) for path in links if posixpath.dirname(path) != "/" and not is_below(path, workspace)]
    writable = {path for path in paths if path != "/" and not is_below(path, RUN) and not is_below(path, workspace)}
    return tuple(sorted(writable, key=lambda path: (depth(path), path)))
