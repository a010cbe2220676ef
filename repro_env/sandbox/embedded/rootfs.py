"""Make the root file system of a run: the layers of the image, then /proc, /sys, /dev, /etc and the mounts.

The layers are mounted while the host's files are still visible (`Root.stack`). Everything else is done after `change_root`, so
that no symlink of an image can lead out of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from repro_env.environment.system import elf, ldcache
from repro_env.io import filesystem
from repro_env.oci import paths
from repro_env.sandbox import kernel
from repro_env.sandbox.embedded import overlay
from repro_env.sandbox.workspace import make_file_point
from repro_env.schema.errors import RunError, SandboxError, os_errors_as
from repro_env.schema.run import Launch, User

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
"""Symlinks in /dev."""
_RESTRICTED = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_HIDDEN_IN_PROC = (
    "acpi kcore key-users keys kpagecgroup kpagecount kpageflags latency_stats pagetypeinfo sched_debug scsi slabinfo "
    "timer_list timer_stats vmallocinfo"
)
HIDDEN = (*(f"/proc/{name}" for name in _HIDDEN_IN_PROC.split()), "/sys/firmware", "/sys/devices/virtual/powercap")
"""Files about the machine or the caller's keys. Docker hides most of them by default (moby, oci/defaults.go)."""


class Root:
    """The layers of the image with writable directories, whose files are in the run's directory `outside`.

    Usually that is the upper layer of an overlay. For kernels that refuse overlay, it is a read-only bind mount of a merged tree,
    in which a writable directory is covered with the one of the same path in `outside`, and its children are mounted in the cover.
    """

    def __init__(self, trees: Sequence[Path], outside: Path, *, work: Path | None) -> None:
        """`trees` are the layers, the lowest first, and `work` is overlay's work directory; or the merged tree and None."""
        self._trees, self._outside, self._work = trees, outside, work
        self._handle = -1
        self.means = "links" if work is None else "overlay"
        """The name of this way to mount the layers, for the record."""

    def stack(self, target: Path) -> None:
        """Mount the tree at `target`. Raises `OSError` if the kernel refuses."""
        if self._work is not None:
            overlay.mount(target, self._trees, upper=self._outside, work=self._work)
            return
        self._handle = os.open(self._outside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.bind(str(self._trees[0]), str(target), recursive=False)
        seal(str(target))
        self._cover(str(target), "/")

    def make_directory(self, path: str) -> None:
        """Make the directory `path` and its parents unless they exist, after `change_root`."""
        above = path
        while not os.path.isdir(above):  # noqa: PTH112
            above = os.path.dirname(above)  # noqa: PTH120
        if above != path:
            self.make_writable(above)
            _make_directories(path)

    def make_writable(self, path: str, *, without: Sequence[str] = ()) -> None:
        """Make the directory `path` writable, and remove the names `without` from it."""
        self.make_directory(path)
        real = os.path.realpath(path)
        if self._work is None and not os.access(real, os.W_OK):
            self._cover(real, real, without)
        for name in without:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{real}/{name}")  # noqa: PTH108

    def _cover(self, directory: str, path: str, without: Sequence[str] = ()) -> None:
        """Cover a directory, which is `path` inside the run, and mount its children in the cover, except for `without`."""
        cover = f"/proc/self/fd/{self._handle}{path}"
        _make_directories(cover)
        covered = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.chmod(cover, stat.S_IMODE(os.fstat(covered).st_mode) | stat.S_IRWXU)  # noqa: PTH101
            kernel.bind(cover, directory, recursive=False)
            seal(directory, read_only=False)
            for name in set(os.listdir(covered)).difference(without):  # noqa: PTH208  of a descriptor
                kind = os.stat(name, dir_fd=covered, follow_symlinks=False).st_mode
                point = f"{directory}/{name}"
                if stat.S_ISLNK(kind):
                    Path(point).symlink_to(os.readlink(name, dir_fd=covered))
                    continue
                if stat.S_ISDIR(kind):
                    _make_directories(point)
                else:
                    make_file_point(point)
                kernel.bind(f"/proc/self/fd/{covered}/{name}", point)
        finally:
            os.close(covered)


def _make_directories(path: str) -> None:
    os.makedirs(path, mode=0o755, exist_ok=True)  # noqa: PTH103


def seal(target: str, *, read_only: bool = True) -> None:
    """Make the mount at `target` and all mounts below it nodev, nosuid and, if `read_only`, read-only. Raises `OSError`."""
    try:
        kernel.seal(target, read_only=read_only)
    except OSError:
        seal_each_mount(target, read_only=read_only)


def seal_each_mount(target: str, *, read_only: bool = True) -> None:
    """Do the same as `seal` on kernels before 5.12. In a user namespace, the other options of a mount must not change."""
    flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_NODEV | kernel.MS_NOSUID | (kernel.MS_RDONLY if read_only else 0)
    unchanged = {
        "ro": kernel.MS_RDONLY,
        "noexec": kernel.MS_NOEXEC,
        "noatime": kernel.MS_NOATIME,
        "nodiratime": kernel.MS_NODIRATIME,
        "relatime": kernel.MS_RELATIME,
    }
    real = os.path.realpath(target)
    for mount in filesystem.mounts():
        if f"{mount.point}/".startswith(real.rstrip("/") + "/"):
            kernel.mount("", mount.point, flags=flags | sum(unchanged.get(option, 0) for option in set(mount.options)))


def attempt(what: str) -> AbstractContextManager[None]:
    """Turn an `OSError` inside the block into a `SandboxError` that says what failed."""
    return os_errors_as(SandboxError, f"cannot {what}", hint="run `repro-env doctor` for the cause and its fix")


def change_root(target: Path) -> int:
    """Make `target` the root. Returns a descriptor of the old root, which stays mounted until `detach_old_root`."""
    old = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(target)
    kernel.pivot_root_here()
    os.chdir("/")
    return old


def detach_old_root(old: int) -> None:
    """Unmount the host's root. Afterwards only bind mounts of the host's files are visible."""
    os.fchdir(old)
    kernel.detach(".")
    os.chdir("/")
    os.close(old)


def mount_system(root: Root, old: int, *, console: str = "") -> list[str]:
    """Mount `/proc`, `/sys`, `/dev` and `/run`. Returns deviations, for the record.

    `console`: the host's path of the run's terminal, which becomes `/dev/console`.
    """
    for path in ("/proc", "/sys", "/dev", "/run"):
        root.make_directory(path)
    deviations = mount_proc(old)
    deviations += _sys(old)
    with attempt("make /dev"):
        deviations += _dev(old, console)
    with attempt("make /run"):
        kernel.mount("tmpfs", "/run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755")
    hide_machine()
    return deviations


def mount_proc(old: int | None) -> list[str]:
    """Mount `/proc` for the PID namespace of this process. Returns deviations, for the record.

    `old`: a descriptor of the host's root; None if `/proc` is already mounted, for another PID namespace.
    """
    deviations = []
    try:
        # hidepid hides processes that the command cannot trace, such as the first process of the run.
        kernel.mount("proc", "/proc", "proc", _RESTRICTED, "hidepid=2")
    except OSError:  # in a container whose /proc has masked paths, a new one is refused
        if old is not None:
            os.fchdir(old)
            with attempt("bind /proc"):
                kernel.bind("proc", "/proc")
            os.chdir("/")
        deviations.append("proc: host")
    if not overlay.in_user_namespace():  # else the command has no permission to write these
        for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/driver"):
            if os.path.lexists(path):
                with attempt(f"make {path} read-only"):
                    kernel.bind(path, path)
                    seal(path)
    return deviations


def hide_machine() -> None:
    """Hide files about the machine, after `/proc` and `/sys` are mounted."""
    for path in HIDDEN:
        with attempt(f"hide {path}"):
            _hide(path)


def _hide(path: str) -> None:
    """Cover a file or directory with an empty one."""
    if os.path.isdir(path):  # noqa: PTH112
        kernel.mount("tmpfs", path, "tmpfs", _RESTRICTED | kernel.MS_RDONLY)
    elif os.path.lexists(path):
        kernel.bind("/dev/null", path)


def _sys(old: int) -> list[str]:
    host_sys = f"/proc/self/fd/{old}/sys"
    try:
        kernel.mount("sysfs", "/sys", "sysfs", _RESTRICTED | kernel.MS_RDONLY)
        if os.path.isdir(f"{host_sys}/fs/cgroup") and os.path.isdir("/sys/fs/cgroup"):  # noqa: PTH112
            kernel.bind(f"{host_sys}/fs/cgroup", "/sys/fs/cgroup")  # programs read their limits there
            seal("/sys/fs/cgroup")
    except OSError:
        pass
    else:
        return []
    try:
        kernel.bind(host_sys, "/sys")
        seal("/sys")
    except OSError:
        return ["sys: none"]
    return ["sys: host"]


def _dev(old: int, console: str) -> list[str]:
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755")
    for name in DEVICES:
        if os.path.lexists(f"/proc/self/fd/{old}/dev/{name}"):
            make_file_point(f"/dev/{name}")
            kernel.bind(f"/proc/self/fd/{old}/dev/{name}", f"/dev/{name}")
    if console:
        make_file_point("/dev/console")
        kernel.bind(f"/proc/self/fd/{old}{console}", "/dev/console")
    for name, target in DEVICE_LINKS.items():
        Path("/dev", name).symlink_to(target)
    os.mkdir("/dev/shm")  # noqa: PTH102, S108
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")  # noqa: S108
    os.mkdir("/dev/pts")  # noqa: PTH102
    try:
        kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    except OSError:
        return ["pts: none"]
    Path("/dev/ptmx").symlink_to("pts/ptmx")
    return []


def bind_device(target: str, handle: int) -> None:
    """Bind the device file of a descriptor (O_PATH) to `target`, a path below /dev."""
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    make_file_point(target)
    kernel.bind(f"/proc/self/fd/{handle}", target)


Resolver = tuple["bytes | None", bytes]
"""The host's /etc/hosts, or None for a run without network, and its /etc/resolv.conf."""


def resolver_files(launch: Launch) -> Resolver:
    """Read the host's files for the resolution of names, which a run needs only with network."""
    return (read("/etc/hosts"), read("/etc/resolv.conf")) if launch.network else (None, b"")


def write_etc(root: Root, launch: Launch, resolver: Resolver) -> None:
    """Write the files of /etc that are made for each run."""
    texts = etc_files(launch, resolver, lambda name: read(f"/etc/{name}"))
    root.make_writable("/etc", without=sorted(texts))
    for name, text in texts.items():
        handle = os.open(f"/etc/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(text)


def etc_files(launch: Launch, resolver: Resolver, read_image: Callable[[str], bytes]) -> dict[str, bytes]:
    """The contents of the files of /etc that are made for each run, by name. `read_image` returns a file of the image's /etc."""
    user, hostname = launch.user, launch.hostname
    hosts, resolv = resolver
    local = f"127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    line = f"{user.name}:x:{user.uid}:{user.gid}:{user.name}:{user.home}:/bin/sh"
    texts = {
        "passwd": _accounts(read_image("passwd"), user.name, line),
        "group": _group(read_image("group"), user),
        "hosts": local.encode() + (hosts or b""),
        "resolv.conf": resolv,
        "hostname": f"{hostname}\n".encode(),
    }
    libraries = [file.target for file in launch.gpus.files if file.target.startswith(f"{paths.DRIVER}/")]
    if libraries:  # not LD_LIBRARY_PATH, which scripts set, and which would come before the image's own libraries
        flags = ldcache.FLAGS[elf.MACHINES[os.uname().machine]]
        lines = [ldcache.Library(path.rpartition("/")[2], flags, path) for path in libraries]
        texts["ld.so.cache"] = ldcache.add(read_image("ld.so.cache"), lines)
    return texts


def read(path: str) -> bytes:
    """The bytes of a file; empty if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _accounts(text: bytes, name: str, line: str) -> bytes:
    """Put `line` first in passwd(5) or group(5), so that its number resolves to it, and remove other entries of that name."""
    others = []
    for entry in text.splitlines():
        fields = entry.split(b":")
        if len(fields) > 2 and fields[0] != name.encode():
            others.append(entry)
    return b"\n".join([line.encode(), *others]) + b"\n"


def _group(text: bytes, user: User) -> bytes:
    for entry in text.splitlines():
        fields = entry.split(b":")
        if len(fields) > 2 and fields[2] == str(user.gid).encode():
            return text
    return _accounts(text, user.name, f"{user.name}:x:{user.gid}:")


def bind_handle(root: Root, target: str, handle: int, *, read_only: bool, replace_link: bool = False) -> None:
    """Bind the file or directory of a descriptor (O_PATH) to `target`. Raises `RunError` if `target` cannot be made."""
    is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)
    with os_errors_as(RunError, "nothing can be mounted at this path", where=target, hint="choose another target with SRC:DST"):
        if replace_link and os.path.islink(target):  # noqa: PTH114
            root.make_writable(os.path.dirname(target), without=[os.path.basename(target)])  # noqa: PTH119, PTH120
        if is_directory:
            root.make_directory(target)
        elif not os.path.exists(target):  # noqa: PTH110
            root.make_writable(os.path.dirname(target))  # noqa: PTH120
            make_file_point(target)
        kernel.bind(f"/proc/self/fd/{handle}", target)
        seal(target, read_only=read_only)
