"""Try what runs need on this machine, and find the cause of what it refuses, with a fix.

`observe` tries in child processes, `diagnose` interprets the results and is pure.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NoReturn

import msgspec

from repro_env.io import files, filesystem
from repro_env.sandbox import kernel
from repro_env.sandbox.embedded import idmap, namespaces, overlay
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import SandboxError
from repro_env.schema.runners import RunnerName

Step = Literal["user namespace", "other user", "namespaces", "mounts", "proc", "overlay"]
State = Literal["ok", "fallback", "blocked", "absent"]
"""`absent`: missing, and only needed by an option."""


class Directory(Frozen, frozen=True, kw_only=True):
    """A directory and its file system."""

    path: str
    kind: str
    """`ext4`, `nfs4`, `overlay` ..."""
    errno: int
    """Of making a directory in it; 0 if it worked."""
    size: int
    """Bytes free for this user."""
    locks: int = 0
    """The errno of locking a file in it; 0 if it worked."""
    local: str = ""
    """The mount option because of which locks hold only on this machine; empty if there is none."""
    links: int = 0
    """The errno of making a hard link in it; 0 if it worked."""


class Observations(Frozen, frozen=True, kw_only=True):
    kernel: str
    """The release, such as `5.4.0-150-generic`."""
    admin: bool
    """Whether the process may mount without a user namespace."""
    seccomp: int
    """`Seccomp:` of /proc/self/status. 2 is a filter, which container engines install."""
    userns_clone: int | None
    """kernel.unprivileged_userns_clone (Debian, Ubuntu); None if the kernel does not have this setting."""
    max_user_namespaces: int | None
    apparmor: int | None
    """kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10 and later)."""
    store: Directory
    runs: Directory
    tried: dict[Step, int]
    """The errno of each step; 0 if it worked. A step is missing if one that it needs failed, or if it is not needed."""


class Finding(Frozen, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    state: State
    text: str
    fix: str = ""
    """What to do; empty if nothing is wrong."""


ADMINISTRATOR = "as root: "
"""Prefix of each fix that needs an administrator. Users can apply all other fixes themselves."""
HOST = "--runner host uses the live environment, without isolation"
DOCKER = "--runner docker uses a container"
_MIN_SIZE = 1 << 30
"""Free bytes below which an environment does not fit."""
_LOCAL_DISK = "keep the store and the runs on a local disk with ext4, xfs or btrfs (runs: exec --runs DIR)"
_OTHER_DISK = "free some disk space there, use another directory, or change its owner"
_LOCKS = f"{ADMINISTRATOR}mount it with locks (NFS: local_lock=none; Lustre: flock)"
_OTHER = "use another directory (REPRO_ENV_STORE, exec --runs DIR)"
_NETWORK = ("nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "cifs", "smb3", "9p", "virtiofs", "fuse", "overlay")
"""File systems that Linux refuses as the upper layer of an overlay, or should."""
_CHECKS: dict[Step, tuple[str, str, State, str]] = {
    "user namespace": ("allowed", "refused", "blocked", ""),
    "other user": (
        "root in a run is an unprivileged user on this machine",
        "root in a run is root on this machine, because the store or the runs do not support idmapped mounts",
        "fallback",
        "use Linux 5.12 or later and a file system with idmapped mounts (ext4, xfs, btrfs), or run repro-env as a plain user",
    ),
    "namespaces": ("allowed", "PID, IPC, UTS and network namespaces are refused", "blocked", ""),
    "mounts": ("allowed", "refused", "blocked", ""),
    "proc": (
        "each run has its own /proc",
        "runs see the host's /proc, because mounting a new one is refused",
        "fallback",
        "start the container with --security-opt systempaths=unconfined",
    ),
    "overlay": ("allowed", "the layers of an image are linked or copied once, because overlay is refused", "fallback", ""),
}
"""Step -> what is reported if it works and if it is refused, the state then, and the fix if it does not depend on the cause."""


def works(findings: tuple[Finding, ...]) -> bool:
    """Whether `exec` works on this machine, perhaps with a fallback."""
    return all(finding.state != "blocked" for finding in findings)


def alternatives(findings: tuple[Finding, ...], others: Sequence[RunnerName]) -> tuple[str, ...]:
    """Commands and runners that work although the machine refuses isolation; empty if more than isolation is blocked.

    `others`: other runners that work here.
    """
    blocked = {finding.name for finding in findings if finding.state == "blocked"}
    if not blocked or not blocked.issubset(_CHECKS):
        return ()
    return (
        "capture, check, diff, rebuild, push and pack need no namespaces",
        *(f"exec, verify, sensitivity and shell: --runner {name}" for name in others),
        f"exec, verify and sensitivity: {HOST}",
    )


def explain(error: SandboxError, store: Path, runs: Path) -> SandboxError:
    """Add the cause, its fix and the alternatives to an error. Returns the error unchanged if `diagnose` finds no cause."""
    findings = diagnose(observe(store, runs))
    blocked = next((finding for finding in findings if finding.state == "blocked"), None)
    if blocked is None:
        return error
    other = f"; alternatives: {DOCKER}, {HOST}" if alternatives(findings, ()) else ""
    return SandboxError(f"{error.what}; {blocked.name}: {blocked.text}", where=error.where, hint=f"{blocked.fix}{other}")


def diagnose(machine: Observations) -> tuple[Finding, ...]:
    """A finding for each step that was tried, in the order in which a run needs them, and for both directories."""
    steps = [step for step in _CHECKS if step in machine.tried]
    findings = (_diagnose_step(step, machine.tried[step], machine) for step in steps)
    return (*findings, _diagnose_disk("store", machine.store), _diagnose_disk("runs", machine.runs))


def _diagnose_step(step: Step, number: int, machine: Observations) -> Finding:
    works, refused, state, fix = _CHECKS[step]
    if number == 0:
        return Finding(name=step, state="ok", text=works)
    why, fix = (_name(number), fix) if fix else _explain(step, number, machine)
    return Finding(name=step, state=state, text=f"{refused}: {why}", fix=fix)


def _explain(step: Step, number: int, machine: Observations) -> tuple[str, str]:
    """The cause of a refusal, and its fix."""
    if not machine.admin and _version(machine.kernel) < ((5, 11) if step == "overlay" else (3, 8)):
        why = f"Linux {machine.kernel} does not allow it to plain users"
        return why, f"{ADMINISTRATOR}use Linux 5.11 or later, or run repro-env as root"
    if step == "overlay":
        if number == errno.ENODEV:
            return "the kernel does not have the overlay file system", f"{ADMINISTRATOR}modprobe overlay"
        if machine.runs.kind in _NETWORK:
            return f"an upper layer on {machine.runs.kind} is not supported", _LOCAL_DISK
        return f"{_name(number)} on {machine.runs.kind}", _LOCAL_DISK
    if machine.userns_clone == 0 and not machine.admin:
        return "kernel.unprivileged_userns_clone is 0", f"{ADMINISTRATOR}sysctl -w kernel.unprivileged_userns_clone=1"
    if number == errno.ENOSPC:
        name = "user.max_user_namespaces"
        why = f"the limit is reached ({name} is {machine.max_user_namespaces}), or namespaces are nested too deeply"
        return why, f"{ADMINISTRATOR}sysctl -w {name}=15000"
    if machine.apparmor == 1 and not machine.admin and machine.seccomp != 2:
        setting = "kernel.apparmor_restrict_unprivileged_userns=0"
        fix = f"{ADMINISTRATOR}sysctl -w {setting}, or an AppArmor profile with `userns,` for your python"
        return "AppArmor does not allow it to plain users", fix
    if machine.seccomp == 2:
        options = "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
        return (
            f"a seccomp filter, probably of a container engine, refuses it ({_name(number)})",
            f"start the container with {options}, or run repro-env outside the container",
        )
    return (
        f"{_name(number)}, by a security module, or because this process is in a chroot",
        "run repro-env outside the container or chroot, or as root",
    )


def _diagnose_disk(name: str, directory: Directory) -> Finding:
    where = f"{directory.path} ({directory.kind})"
    if directory.errno:
        text = f"{where} cannot be written: {_name(directory.errno)}"
        return Finding(name=name, state="blocked", text=text, fix=_OTHER_DISK)
    if directory.locks:
        text = f"{where} has no locks: {_name(directory.locks)}"
        return Finding(name=name, state="blocked", text=text, fix=f"{_LOCKS}, or {_OTHER}")
    text = f"{where}: {directory.size / (1 << 30):.1f} GiB free"
    if directory.size < _MIN_SIZE:
        fix = "free some disk space: an environment with torch takes several GiB"
        return Finding(name=name, state="fallback", text=text, fix=fix)
    if directory.local:
        why = f"{text}; locks hold only on this machine ({directory.local}), so `store gc` is refused, and runs on other nodes look alive"
        return Finding(name=name, state="fallback", text=why, fix=f"{_LOCKS}, or {_OTHER}")
    if directory.links and name == "store":
        why = f"{text}; without overlay, images are copied, because there are no hard links ({_name(directory.links)})"
        return Finding(name=name, state="fallback", text=why, fix=_OTHER)
    return Finding(name=name, state="ok", text=text)


def find_network() -> Finding:
    """Whether this machine has a network, which `capture` and `rebuild` may need."""
    if len(Path("/proc/self/net/route").read_text().splitlines()) > 1:
        return Finding(name="network", state="ok", text="this machine has one; runs get it only with --network")
    text = "this machine has none, and runs need none"
    fix = "bring images in a file of `repro-env pack --all`, or in a store on a shared file system"
    return Finding(name="network", state="absent", text=text, fix=fix)


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def observe(store: Path, runs: Path) -> Observations:
    """Try everything that a run needs, in child processes. `store` and `runs` are existing directories."""
    status = Path("/proc/self/status").read_text()
    seccomp = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    return Observations(
        kernel=os.uname().release,
        admin=namespaces.can_mount(),
        seccomp=int(seccomp[1]) if seccomp else 0,
        userns_clone=_setting("kernel/unprivileged_userns_clone"),
        max_user_namespaces=_setting("user/max_user_namespaces"),
        apparmor=_setting("kernel/apparmor_restrict_unprivileged_userns"),
        store=_directory(store),
        runs=_directory(runs),
        tried=_try(store, runs),
    )


def _setting(name: str) -> int | None:
    """The number in a file of /proc/sys; None if the file does not exist."""
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None


def _directory(path: Path) -> Directory:
    locks = links = 0

    def make() -> None:
        nonlocal locks, links
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=path) as made, Path(made, "file").open("w") as file:
            locks = _attempt(lambda: fcntl.flock(file, fcntl.LOCK_EX))
            links = _attempt(lambda: os.link(f"{made}/file", f"{made}/link"))

    number = _attempt(make)
    mount = filesystem.of(path)
    return Directory(
        path=str(path),
        kind="unknown" if mount is None else mount.kind,
        errno=number,
        size=files.free(path)[0],
        locks=locks,
        local=filesystem.local_locks(path),
        links=links,
    )


def _attempt(act: Callable[[], object]) -> int:
    """The errno of a call; 0 if it worked."""
    try:
        act()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _try(store: Path, runs: Path) -> dict[Step, int]:
    """Try the steps in the order in which they depend on each other. Returns nothing if `runs` cannot be written."""
    tried: dict[Step, int] = {}
    with (
        contextlib.suppress(OSError),
        tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs, ignore_cleanup_errors=True) as made,
    ):
        if namespaces.can_mount() and os.geteuid() == 0:
            paths = [os.path.realpath(path) for path in (store, made)]
            tried["other user"] = _attempt(lambda: idmap.open_view(paths).close())
        read, write = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            _enter_namespaces(Path(made), write)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            lines = pipe.read().splitlines()
        os.waitpid(child, 0)
        tried |= dict(msgspec.json.decode(line, type=tuple[Step, int]) for line in lines)
    return tried


def _enter_namespaces(directory: Path, write: int) -> NoReturn:
    """In the forked process: enter all namespaces. If that works, its child is PID 1 of the new PID namespace."""
    try:
        if (namespaces.can_mount() or _report(write, "user namespace", namespaces.enter_user)) and _report(
            write, "namespaces", lambda: namespaces.enter(network=False)
        ):
            child = os.fork()
            if child == 0:
                _mount(directory, write)
            os.waitpid(child, 0)
    finally:
        os._exit(0)


def _mount(directory: Path, write: int) -> NoReturn:
    """In PID 1 of the new PID namespace: mount what a run needs."""
    lower, upper, work, target = (directory / name for name in ("lower", "upper", "work", "target"))

    def mount_memory() -> None:
        namespaces.enter_mounts()
        kernel.mount("tmpfs", str(target), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
        kernel.detach(str(target))

    def mount_overlay() -> None:
        overlay.mount(target, [lower], upper=upper, work=work)
        (target / "file").touch()
        (target / "file").unlink()

    try:
        for path in (lower, upper, work, target):
            path.mkdir()
        if _report(write, "mounts", mount_memory):
            _report(write, "proc", lambda: kernel.mount("proc", str(lower), "proc", kernel.MS_NOSUID | kernel.MS_NODEV))
            kernel.detach(str(lower))
            _report(write, "overlay", mount_overlay)
    finally:
        os._exit(0)


def _report(write: int, step: Step, act: Callable[[], object]) -> bool:
    """Try a step and write the result to a pipe. Returns whether it worked."""
    number = _attempt(act)
    os.write(write, msgspec.json.encode((step, number)) + b"\n")
    return number == 0
