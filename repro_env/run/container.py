"""A launch as a container: what the engine is asked for, as its API takes it (`POST /containers/create`). Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from repro_env.image import layout
from repro_env.model.codec import Frozen
from repro_env.model.run import Launch
from repro_env.model.text import AbsPath, Line
from repro_env.run import rootfs

INIT = "/.repro-env/init"
"""Where a container sees `Place.control`."""
LABEL = "io.repro-env.run"
"""On every container of ours: the scratch folder of its run, which is locked as long as the run is watched over."""
ORIGIN = "io.repro-env.origin"
"""Which boot and which mounts that folder was seen from: another container that talks to the same engine sees other folders."""
RUN = "/run"
_WRITABLE = "rw,exec,nosuid,nodev,mode=1777"


class Bind(Frozen, frozen=True, kw_only=True):
    """A path of this machine in the container."""

    source: AbsPath
    target: AbsPath
    read_only: bool
    is_filled: bool = False
    """It holds files of the user's, which the run may change."""


class Place(Frozen, frozen=True, kw_only=True):
    """All that had to be read or made on this machine."""

    scratch: AbsPath
    origin: Line
    control: AbsPath
    """A folder of this run's with `init.py` and `launch.json`, for `init.py` to answer in."""
    interpreter: AbsPath
    """The image's own, by its path inside: it runs `init.py`."""
    workspace: AbsPath
    """The writable copy of the source."""
    binds: tuple[Bind, ...]
    """Writable folders, what the image has in them, and the trees of the image at their captured paths."""
    groups: tuple[int, ...]
    """The caller's supplementary groups."""
    shared: int
    """Bytes of /dev/shm."""
    memory: int
    """Bytes that the caller's own control group allows; 0 for no limit."""
    cpus: Line
    """The processors that the caller may use, as `0-3,7`; empty for all."""
    terminal: bool
    keep_id: bool
    """The engine runs as the caller, and has to be told to let uids be what they are (Podman)."""


def to_container(launch: Launch, place: Place) -> dict[str, object]:
    """The container of a launch. The command, its variables and its working folder are not in it: `init.py` has them from a file,
    since what an engine is told it writes down."""
    binds = {one.target: one for one in place.binds}
    ours = (
        Bind(source=place.workspace, target=launch.workspace, read_only=False),
        *(Bind(source=one.source, target=one.target, read_only=one.read_only) for one in launch.mounts),
        Bind(source=launch.tools, target=layout.SEEDS, read_only=True),
        Bind(source=launch.notes, target=layout.NOTES, read_only=False),
        Bind(source=place.control, target=INIT, read_only=False),
    )
    binds |= {one.target: one for one in ours if one.target not in binds}
    host: dict[str, object] = {
        "Mounts": [_mount(binds[target]) for target in sorted(binds, key=lambda path: (depth(path), path))],
        "Tmpfs": {RUN: _WRITABLE},
        "ShmSize": place.shared,
        "ReadonlyRootfs": False,  # what is written there is fetched afterwards (`layer.fetch`)
        "CapDrop": ["ALL"],
        # Folders of this user's are shown, and not labelled anew for it.
        "SecurityOpt": ["no-new-privileges", "label=disable"],
        "NetworkMode": "host" if launch.network else "none",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "MaskedPaths": list(rootfs.HIDDEN),
        "GroupAdd": [str(group) for group in place.groups],
        "LogConfig": {"Type": "none", "Config": {}},
        "Init": False,  # init.py is it: it says how the command ended, which an exit code alone cannot
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
    }
    if place.memory:
        host["Memory"] = place.memory
    if place.cpus:
        host["CpusetCpus"] = place.cpus
    if launch.gpus:
        count = -1 if launch.gpus == "all" else launch.gpus
        host["DeviceRequests"] = [{"Driver": "", "Count": count, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}]
    if place.keep_id:
        host["UsernsMode"] = "keep-id"
    return {
        "Image": launch.image,
        "Entrypoint": [place.interpreter, "-I", "-S", "-B", f"{INIT}/init.py", "start", INIT],
        "Cmd": [],
        "User": f"{launch.user.uid}:{launch.user.gid}",
        "WorkingDir": "/",
        "Hostname": launch.hostname,
        "Labels": {LABEL: place.scratch, ORIGIN: place.origin},
        "Tty": place.terminal,
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
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


def ranges(numbers: Sequence[int]) -> str:
    """`0-3,7`, as control groups write sets of processors."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def covered(launch: Launch, links: Sequence[str], missing: Sequence[str] = ()) -> tuple[str, ...]:
    """Folders that a run has to be able to write, or where a mount point is a symlink in the image; outermost first.

    `links`: targets of `launch.trees` that are symlinks in the image. A mount on a symlink would go where it leads.
    `missing`: directories that the image lacks, to be made for the user.
    """
    home, workspace = launch.user.home, launch.workspace
    wanted = ["/tmp", "/var/tmp", *missing]  # noqa: S108
    hidden = (workspace, *(mount.target for mount in launch.mounts))
    if not any(_within(home, path) for path in hidden):
        wanted.append(home)
    wanted += [posixpath.dirname(path) for path in links if posixpath.dirname(path) != "/" and not _within(path, workspace)]
    found = dict.fromkeys(path for path in wanted if path != "/" and not _within(path, RUN) and not _within(path, workspace))
    return tuple(sorted(found, key=lambda path: (depth(path), path)))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
