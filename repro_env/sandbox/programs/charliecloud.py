"""The Charliecloud runner: ch-run mounts the image and enters it, in a user namespace, without root.

ch-run leaves much of the host in the container: the network, processes, /dev, and every mount is writable. But it can make the
first process uid 0 of its user namespace, which may do the rest: `init.py` gets a list of mounts, and drops everything afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.io import filesystem
from repro_env.oci.paths import is_below
from repro_env.sandbox import kernel, workspace
from repro_env.sandbox.embedded import rootfs
from repro_env.sandbox.image import Mounts
from repro_env.sandbox.programs.runner import Container, ProgramRunner, environment
from repro_env.schema.environment import values_of
from repro_env.schema.errors import RunError
from repro_env.schema.run import Launch

_Row = tuple["str | None", str, "str | None", int, "str | None"]
"""The arguments of mount(2)."""
_RESTRICTED = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_SEALED = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV
_LOCKED = os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME
"""Options that a mount must keep in a user namespace. statvfs(3) and mount(2) have the same numbers for these."""
_CGROUP = "cgroup"
"""Directory in /dev for the host's /sys/fs/cgroup, until it is moved."""
_SYSTEM = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/driver")
"""What only the host's root can write."""


class CharliecloudRunner(ProgramRunner):
    """Runs a launch with ch-run."""

    name = "charliecloud"
    program = "ch-run"
    package = "install Charliecloud (Debian: apt-get install charliecloud), load its module, or use another runner"

    def container(self, launch: Launch, binds: Mounts, root: Path, scratch: Path) -> Container:
        """See `ProgramRunner`."""
        nodes = {f"/dev/{name}": f"/dev/{name}" for name in rootfs.DEVICES} | {
            node.target: node.source for node in launch.gpus.nodes
        }
        binds = {**binds, "/dev": (str(_make_devices(scratch / "dev", nodes)), True)}
        sources = {target: source for target, (source, _) in binds.items()} | nodes
        if not launch.network:
            sources[f"/dev/{_CGROUP}"] = "/sys/fs/cgroup"
        arguments = []
        for target in sorted(sources, key=lambda path: (path.count("/"), path)):
            source = sources[target]
            if ":" in source + target:
                hint = "choose another path, or use another runner"
                raise RunError("ch-run cannot mount a path with a colon", where=source if ":" in source else target, hint=hint)
            arguments.append(f"--bind={source}:{target}")
        if libraries := values_of(launch.env).get("LD_LIBRARY_PATH"):  # some interpreters need it to find their libraries
            arguments += ["--env-no-expand", f"--set-env=LD_LIBRARY_PATH={libraries}"]
        options = ["--no-passwd", "--private-tmp", "--write", "--uid=0", "--gid=0"]
        isolation = {
            "namespaces": kernel.CLONE_NEWPID
            | kernel.CLONE_NEWIPC
            | kernel.CLONE_NEWUTS
            | (0 if launch.network else kernel.CLONE_NEWNET),
            "mounts": list(_rows(launch, binds, root)),
            "hostname": launch.hostname,
            "loopback": not launch.network,
            "user": [launch.user.uid, launch.user.gid],
        }
        return Container(
            arguments=(*options, *arguments, str(root), "--"),
            env=environment(),
            isolation=isolation,
            deviations=("sys: host",) if launch.network else (),
        )


def _make_devices(directory: Path, nodes: Iterable[str]) -> Path:
    """Make the directory for /dev, with mount points for device files. Returns it."""
    directory.mkdir()
    for name in ("shm", "pts", _CGROUP):
        (directory / name).mkdir()
    for name, target in {**rootfs.DEVICE_LINKS, "ptmx": "pts/ptmx"}.items():
        (directory / name).symlink_to(target)
    workspace.make_mount_points(directory, "/dev", dict.fromkeys(nodes, False))
    return directory


def _rows(launch: Launch, binds: Mounts, root: Path) -> Iterator[_Row]:
    """What `init.py` mounts in the container, in this order."""
    yield "proc", "/proc", "proc", _RESTRICTED, "hidepid=2"
    if launch.user.uid == 0:
        for path in filter(os.path.lexists, _SYSTEM):
            yield path, path, None, kernel.MS_BIND | kernel.MS_REC, None
            yield None, path, None, _SEALED | _RESTRICTED | kernel.MS_RDONLY, None
    yield "tmpfs", "/dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777"  # noqa: S108
    yield "devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"
    system = "/sys"
    if not launch.network:  # in a new network namespace, a new sysfs has none of this machine's interfaces
        system = "/sys/fs/cgroup"
        yield "sysfs", "/sys", "sysfs", _RESTRICTED | kernel.MS_RDONLY, None
        yield f"/dev/{_CGROUP}", system, None, kernel.MS_MOVE, None  # programs read their limits there
    for path in filter(os.path.lexists, rootfs.HIDDEN):
        if os.path.isdir(path):  # noqa: PTH112
            yield "tmpfs", path, "tmpfs", _RESTRICTED | kernel.MS_RDONLY, None
        else:
            yield "/dev/null", path, None, kernel.MS_BIND, None
    mounted = {"/": (str(root), True)} | binds
    mounted |= {mount.point: (mount.point, True) for mount in filesystem.mounts() if is_below(mount.point, system)}
    for target, (source, read_only) in mounted.items():
        if target not in rootfs.HIDDEN:
            kept = os.statvfs(source).f_flag & _LOCKED
            yield None, target, None, _SEALED | kept | (kernel.MS_RDONLY if read_only else 0), None
