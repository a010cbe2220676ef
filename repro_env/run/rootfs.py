"""The root file system of a run, as seen by its first process: layers, then what every program expects to find.

The layers are stacked while the host's tree is still there (`Root.stack`); everything else is done after the
root was changed (`Root.enter`), where no symlink of an image can lead out of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from repro_env.model.errors import RunError, SandboxError
from repro_env.model.run import User
from repro_env.run import filesystem, kernel, overlay

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
HIDDEN = (
    *(
        f"/proc/{name}"
        for name in ("acpi", "kcore", "key-users", "keys", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats")
    ),
    *(
        f"/proc/{name}"
        for name in ("pagetypeinfo", "sched_debug", "scsi", "slabinfo", "timer_list", "timer_stats", "vmallocinfo")
    ),
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
"""Facts about the whole machine or the caller's keys. Docker hides most of them by default (moby, oci/defaults.go)."""


ETC = ("passwd", "group", "hosts", "resolv.conf", "hostname")
"""The files of /etc that are a run's own."""


class Root(Protocol):
    """One way of having the layers as a tree in which some places can be written."""

    means: str
    """How, for the record."""
    on_disk: bool
    """What is written lies on disk."""
    memory: list[tuple[str, int]]
    """Paths inside, and handles of the directories in memory that hold what is written below them."""

    def stack(self, target: Path) -> None:
        """Show the tree at `target`. Raises `OSError` when the kernel refuses."""
        ...

    def folder(self, path: str) -> None:
        """Make sure that there is a folder at `path` of the entered root, making its parents."""
        ...

    def open(self, path: str, *, without: Sequence[str] = ()) -> None:
        """Make sure that the folder at `path` can be written; the names `without` are gone from it."""
        ...


class OverlayRoot:
    """The layers under a throw-away upper side: every place can be written."""

    def __init__(self, layers: Sequence[Path], upper: Path | None, work: Path | None) -> None:
        """Without `upper` and `work` the upper side lies in memory."""
        self._layers = layers
        self._sides = (upper, work)
        self.memory: list[tuple[str, int]] = []
        self.on_disk = upper is not None
        self.means = "overlay" if upper else "overlay, upper side in memory"

    def stack(self, target: Path) -> None:
        upper, work = self._sides
        if upper is None or work is None:
            kernel.mount("tmpfs", str(target), "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, "mode=0700")
            upper, work = target / "upper", target / "work"
            upper.mkdir(0o755)
            work.mkdir()
            self.memory.append(("/", os.open(upper, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)))
        overlay.mount(target, self._layers, upper=upper, work=work, throw_away=True)

    def folder(self, path: str) -> None:
        _make(path)

    def open(self, path: str, *, without: Sequence[str] = ()) -> None:
        _make(path)
        _unlink(path, without)


class LinkedRoot:
    """A tree of links, bound read-only: where something has to be written, memory with the tree's own children in it."""

    means = "links"
    on_disk = False

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self.memory: list[tuple[str, int]] = []

    def stack(self, target: Path) -> None:
        kernel.bind(str(self._tree), str(target), recursive=False)
        seal(str(target))
        self._reopen(str(target), (), at="/")

    def folder(self, path: str) -> None:
        if os.path.isdir(path):  # noqa: PTH112
            return
        above = os.path.dirname(path)  # noqa: PTH120
        while not os.path.isdir(above):  # noqa: PTH112
            above = os.path.dirname(above)  # noqa: PTH120
        self.open(above)
        _make(path)

    def open(self, path: str, *, without: Sequence[str] = ()) -> None:
        self.folder(path)
        if os.access(path, os.W_OK):
            _unlink(path, without)
        else:
            real = os.path.realpath(path)
            self._reopen(real, without, at=real)

    def _reopen(self, folder: str, without: Sequence[str], *, at: str) -> None:
        """Cover a folder with memory and bind its children back, as they were. `at`: its path inside."""
        with _kept(folder, without) as mode:
            kernel.mount("tmpfs", folder, "tmpfs", kernel.MS_NODEV | kernel.MS_NOSUID, f"mode={mode:04o}")
            self.memory.append((at, os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)))


@contextlib.contextmanager
def _kept(folder: str, without: Sequence[str] = ()) -> Iterator[int]:
    """The block covers `folder` with an empty mount; afterwards its children are in it again. Gives the folder's mode."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield stat.S_IMODE(os.fstat(handle).st_mode)
        for name in os.listdir(handle):  # noqa: PTH208  of a handle
            if name in without:
                continue
            kind = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
            here = f"{folder}/{name}"
            if stat.S_ISLNK(kind):
                Path(here).symlink_to(os.readlink(name, dir_fd=handle))
                continue
            _point(here, is_folder=stat.S_ISDIR(kind))
            kernel.bind(f"/proc/self/fd/{handle}/{name}", here)
    finally:
        os.close(handle)


def _point(path: str, *, is_folder: bool) -> None:
    if is_folder:
        os.mkdir(path)  # noqa: PTH102
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _unlink(folder: str, names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{folder}/{name}")  # noqa: PTH108


def _make(path: str) -> None:
    os.makedirs(path, mode=0o755, exist_ok=True)  # noqa: PTH103


def seal(target: str, *, read_only: bool = True) -> None:
    """Make the mount at `target` and all below it nodev, nosuid and (unless `read_only` is false) read-only.

    Raises `OSError`.
    """
    try:
        kernel.seal(target, read_only=read_only)
    except OSError:
        seal_one_by_one(target, read_only=read_only)


def seal_one_by_one(target: str, *, read_only: bool = True) -> None:
    """As `seal`, for kernels before 5.12. In a user namespace the other options of a mount have to stay as they are."""
    wanted = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_NODEV | kernel.MS_NOSUID | (kernel.MS_RDONLY if read_only else 0)
    keep = {
        "ro": kernel.MS_RDONLY,
        "noexec": kernel.MS_NOEXEC,
        "noatime": kernel.MS_NOATIME,
        "nodiratime": kernel.MS_NODIRATIME,
        "relatime": kernel.MS_RELATIME,
    }
    real = os.path.realpath(target)
    for one in filesystem.mounts():
        if one.point == real or one.point.startswith(real.rstrip("/") + "/"):
            kernel.mount("", one.point, flags=wanted | sum(keep.get(option, 0) for option in set(one.options)))


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Say what could not be done when the kernel refuses something inside the block."""
    try:
        yield
    except OSError as error:
        raise SandboxError(
            f"cannot {what}: {error.strerror}",
            where=str(error.filename or ""),
            hint="`repro-env doctor` tells what is refused here",
        ) from None


def change(target: Path) -> int:
    """Make `target` the root. Returns a handle of the old one, stacked below until `leave`."""
    old = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(target)
    kernel.pivot_root_here()
    os.chdir("/")
    return old


def leave(old: int) -> None:
    """Take the host's tree away: from here on nothing of it is left but what was bound."""
    os.fchdir(old)
    kernel.detach(".")
    os.chdir("/")
    os.close(old)


def system(root: Root, old: int, *, console: str = "") -> list[str]:
    """`/proc`, `/sys` and `/dev`. Returns deviations, for the record.

    `console`: the host's path of the run's own terminal, which programs find by its number as `/dev/console`.
    """
    notes = []
    for path in ("/proc", "/sys", "/dev"):
        root.folder(path)
    try:
        # hidepid hides processes that cannot be traced: the first one, which has the command's uid.
        kernel.mount("proc", "/proc", "proc", _QUIET, "hidepid=2")
    except OSError:  # masked places in the host's own /proc: a container that may not mount another one
        os.fchdir(old)
        with doing("bind /proc"):
            kernel.bind("proc", "/proc")
        os.chdir("/")
        notes.append("proc: the host's")
    if not overlay.in_user_namespace():  # else these belong to somebody who does not exist inside
        for path in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"):
            if os.path.lexists(path):
                with doing(f"make {path} read-only"):
                    kernel.bind(path, path)
                    seal(path)
    notes += _sys(old)
    with doing("make /dev"):
        notes += _dev(old, console)
    for path in HIDDEN:
        with doing(f"hide {path}"):
            _hide(path)
    return notes


def _hide(path: str) -> None:
    """Cover a file or directory with an empty one."""
    if os.path.isdir(path):  # noqa: PTH112
        kernel.mount("tmpfs", path, "tmpfs", _QUIET | kernel.MS_RDONLY)
    elif os.path.lexists(path):
        kernel.bind("/dev/null", path)


def _sys(old: int) -> list[str]:
    here = f"/proc/self/fd/{old}/sys"
    try:
        kernel.mount("sysfs", "/sys", "sysfs", _QUIET | kernel.MS_RDONLY)
        if os.path.isdir(f"{here}/fs/cgroup") and os.path.isdir("/sys/fs/cgroup"):  # noqa: PTH112
            kernel.bind(f"{here}/fs/cgroup", "/sys/fs/cgroup")  # limits are read there
            seal("/sys/fs/cgroup")
    except OSError:
        pass
    else:
        return []
    try:
        kernel.bind(here, "/sys")
        seal("/sys")
    except OSError:
        return ["sys: none"]
    return ["sys: the host's"]


def _dev(old: int, console: str) -> list[str]:
    kernel.mount("tmpfs", "/dev", "tmpfs", kernel.MS_NOSUID | kernel.MS_NOEXEC, "mode=0755")
    for name in _DEVICES:
        if os.path.lexists(f"/proc/self/fd/{old}/dev/{name}"):
            _point(f"/dev/{name}", is_folder=False)
            kernel.bind(f"/proc/self/fd/{old}/dev/{name}", f"/dev/{name}")
    if console:
        _point("/dev/console", is_folder=False)
        kernel.bind(f"/proc/self/fd/{old}{console}", "/dev/console")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        Path("/dev", name).symlink_to(f"/proc/self/fd{target}")
    os.mkdir("/dev/shm")  # noqa: PTH102, S108
    kernel.mount("tmpfs", "/dev/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=1777")  # noqa: S108
    os.mkdir("/dev/pts")  # noqa: PTH102
    try:
        kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    except OSError:
        return ["pts: none"]
    Path("/dev/ptmx").symlink_to("pts/ptmx")
    return []


def etc(root: Root, user: User, hostname: str, *, hosts: bytes | None, resolv: bytes) -> None:
    """Who the user is, what this machine is called, and where names are asked for.

    `hosts`: the host's own, to go on with; None without a network.
    """
    texts = files_of_etc(
        user, hostname, passwd=read("/etc/passwd"), group=read("/etc/group"), shell=_shell(), hosts=hosts, resolv=resolv
    )
    root.open("/etc", without=sorted(texts))
    for name, text in texts.items():
        handle = os.open(f"/etc/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(text)


def files_of_etc(
    user: User, hostname: str, *, passwd: bytes, group: bytes, shell: str, hosts: bytes | None, resolv: bytes
) -> dict[str, bytes]:
    """The files of /etc that are a run's own, by name. `passwd`, `group`: the image's. Pure."""
    names = [f"127.0.0.1\tlocalhost {hostname}", "::1\tlocalhost ip6-localhost ip6-loopback"]
    line = f"{user.name}:x:{user.uid}:{user.gid}:{user.name}:{user.home}:{shell}"
    return {
        "passwd": _accounts(passwd, user.name, line),
        "group": _group(group, user),
        "hosts": "".join(f"{line}\n" for line in names).encode() + (hosts or b""),
        "resolv.conf": resolv,
        "hostname": f"{hostname}\n".encode(),
    }


def read(path: str) -> bytes:
    """A file's bytes, none when it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"  # noqa: PTH110


def _accounts(text: bytes, name: str, line: str) -> bytes:
    """Return passwd(5) or group(5) with `line` first, so that its number resolves to it, and no other entry of that name."""
    kept = []
    for entry in text.splitlines():
        fields = entry.split(b":")
        if len(fields) > 2 and fields[0] != name.encode():
            kept.append(entry)
    return b"\n".join([line.encode(), *kept]) + b"\n"


def _group(text: bytes, user: User) -> bytes:
    for entry in text.splitlines():
        fields = entry.split(b":")
        if len(fields) > 2 and fields[2] == str(user.gid).encode():
            return text
    return _accounts(text, user.name, f"{user.name}:x:{user.gid}:")


def places(root: Root, temporary: Sequence[tuple[str, int]]) -> None:
    """`/run` and the folders for temporary files: private and writable, and those for files on disk.

    `temporary`: pairs of a path and a handle of an empty folder on disk. What the image has there stays: a
    captured interpreter may live in `/tmp`.
    """
    root.folder("/run")
    with doing("make /run"):
        kernel.mount("tmpfs", "/run", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0755")
    for path, handle in temporary:
        root.folder(path)
        with doing(f"make {path}"):
            if root.on_disk:
                os.chmod(path, 0o1777)  # noqa: PTH101, S103
            else:
                with _kept(path):
                    kernel.bind(f"/proc/self/fd/{handle}", path, recursive=False)


def show(root: Root, target: str, handle: int, *, read_only: bool, replace_link: bool = False) -> None:
    """Bind what `handle` (O_PATH) is of at `target`. Raises `RunError` when there is no place for it."""
    is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
    try:
        if replace_link and os.path.islink(target):  # noqa: PTH114
            root.open(os.path.dirname(target), without=[os.path.basename(target)])  # noqa: PTH119, PTH120
        if is_folder:
            root.folder(target)
        elif not os.path.exists(target):  # noqa: PTH110
            root.open(os.path.dirname(target))  # noqa: PTH120
            _point(target, is_folder=False)
        kernel.bind(f"/proc/self/fd/{handle}", target)
        seal(target, read_only=read_only)
    except OSError as error:
        raise RunError(
            f"cannot be shown at {target}: {error.strerror}", where=target, hint="name another place for it with SRC:DST"
        ) from None
