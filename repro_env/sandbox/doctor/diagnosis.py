"""Diagnose what the observations of a machine mean for runs, with a fix for each problem. Pure."""

from __future__ import annotations

import errno
import re
from typing import Literal

from repro_env.sandbox import filesystem
from repro_env.schema.codec import Frozen

Step = Literal[
    "user namespace",
    "user map",
    "other user",
    "namespaces",
    "network namespace",
    "mounts",
    "proc",
    "loopback",
    "memory",
    "root on disk",
    "workspace",
    "removal",
    "hard link",
]


class Directory(Frozen, frozen=True, kw_only=True):
    """A directory and its file system."""

    path: str
    kind: str
    """`ext4`, `nfs4`, `overlay` ..."""
    errno: int
    """Of making a directory in it; 0 if it worked."""
    size: int
    """Bytes free for this user."""
    inodes: int


class Observations(Frozen, frozen=True, kw_only=True):
    kernel: str
    """The release, such as `5.4.0-150-generic`."""
    uid: int
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
    """The errno of each step; 0 if it worked. Steps that need an earlier step that failed are missing."""


State = Literal["ok", "fallback", "blocked", "absent"]
"""`absent`: missing, and only needed by an option."""

_MIN_SIZE = 1 << 30
"""Free bytes below which an environment does not fit."""
_MIN_INODES = 50_000
"""Free inodes below which a large environment does not fit."""
ADMINISTRATOR = "as root: "
"""Prefix of each fix that needs an administrator. Users can apply all other fixes themselves."""
_APPARMOR = f"{ADMINISTRATOR}sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with `userns,` for your python"
_SECCOMP = (
    "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined, or run repro-env outside the container"
)
_OUTSIDE = "run repro-env outside the container or chroot, or as root"
_LOCAL_DISK = "keep the store and the runs on a local disk with ext4, xfs or btrfs (runs: exec --runs DIR)"
_ISOLATION = ("user namespace", "user map", "namespaces", "network namespace", "mounts", "memory", "loopback")
"""Names of the findings that only affect runs in the image."""
HOST = "--runner host uses the live environment, without isolation"
DOCKER = "--runner docker uses a container"


class Finding(Frozen, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    state: State
    text: str
    fix: str = ""
    """What to do; empty if nothing is wrong."""


class _Check(Frozen, frozen=True):
    """How a step that was tried is reported. `{machine}` are the observations, `{why}` is the cause of the refusal."""

    step: Step
    works: str
    refused: str
    state: State = "blocked"
    fix: str = ""
    """The fix, if it does not depend on the cause."""


_CHECKS = (
    _Check("user namespace", "allowed", "refused: {why}"),
    _Check("user map", "uid {machine.uid} can be mapped", "uid {machine.uid} cannot be mapped into a user namespace: {why}"),
    _Check(
        "other user",
        "root in a run is an unprivileged user on this machine",
        "root in a run is root on this machine: {machine.store.path} or {machine.runs.path} does not support idmapped mounts ({why})",
        "fallback",
        "use Linux 5.12 or later and a file system with idmapped mounts (ext4, xfs, btrfs), or run repro-env as a plain user",
    ),
    _Check("namespaces", "PID, IPC and UTS namespaces are allowed", "PID, IPC and UTS namespaces are refused: {why}"),
    _Check("network namespace", "allowed", "refused: {why}"),
    _Check("mounts", "allowed", "refused: {why}"),
    _Check("memory", "file systems in memory can be mounted", "file systems in memory cannot be mounted: {why}"),
    _Check(
        "proc",
        "each run has its own /proc",
        "runs see the host's /proc: mounting a new one is refused ({why})",
        "fallback",
        "start the container with --security-opt systempaths=unconfined",
    ),
    _Check("loopback", "works", "the interface cannot be enabled ({why})", fix="run with --network"),
    _Check(
        "root on disk",
        "overlay",
        "overlay is refused, so the upper layer is in memory, or the layers are linked or copied once: {why}",
        "fallback",
    ),
    _Check(
        "workspace",
        "overlay in {machine.runs.path} ({machine.runs.kind})",
        "the source is copied for each run, because overlay is refused in {machine.runs.path}: {why}",
        "fallback",
    ),
    _Check(
        "removal",
        "layers can remove files of lower layers",
        "images with a layer that removes files cannot be unpacked ({why})",
        "fallback",
        f"{ADMINISTRATOR}use Linux 5.8 or later, or run repro-env as root",
    ),
    _Check(
        "hard link",
        "works in {machine.store.path}",
        "does not work in {machine.store.path}, so files are copied where overlay is refused ({why})",
        "fallback",
        _LOCAL_DISK,
    ),
)


def works(findings: tuple[Finding, ...]) -> bool:
    """Whether `exec` works on this machine, perhaps with a fallback."""
    return all(finding.state != "blocked" for finding in findings)


def alternatives(findings: tuple[Finding, ...], *, engine: bool) -> tuple[str, ...]:
    """Commands and runners that work although the machine refuses isolation; empty if more than isolation is blocked.

    `engine`: whether there is a usable container engine.
    """
    blocked = {finding.name for finding in findings if finding.state == "blocked"}
    if not blocked or not blocked.issubset(_ISOLATION):
        return ()
    return (
        "capture, check, diff, rebuild, push and pack need no namespaces",
        *([f"exec, verify, sensitivity and shell: {DOCKER}"] if engine else []),
        f"exec, verify and sensitivity: {HOST}",
    )


def diagnose(machine: Observations) -> tuple[Finding, ...]:
    """A finding for each step that was tried, in the order in which a run needs them, and for both directories."""
    findings = [_diagnose_disk("store", machine.store), _diagnose_disk("runs", machine.runs)]
    skipped = ("user namespace", "user map", "other user") if machine.admin else ("other user",)
    for check in _CHECKS:
        # A step counts as refused if it is missing without a reason.
        unknown = None if check.step in skipped or not works(tuple(findings)) else errno.ENOSYS
        number = machine.tried.get(check.step, unknown)
        if number is not None:
            findings.append(_diagnose_step(check, number, machine))
    return (*findings[2:], *findings[:2])


def _diagnose_step(check: _Check, number: int, machine: Observations) -> Finding:
    if number == 0:
        return Finding(name=check.step, state="ok", text=check.works.format(machine=machine))
    why, fix = (_name(number), check.fix) if check.fix else _explain(check, number, machine)
    return Finding(name=check.step, state=check.state, text=check.refused.format(machine=machine, why=why), fix=fix)


def _explain(check: _Check, number: int, machine: Observations) -> tuple[str, str]:
    """The cause of a refusal, and its fix."""
    is_overlay = check.step in ("root on disk", "workspace")
    needs_root = (5, 11) if is_overlay else (3, 8)
    if not machine.admin and _version(machine.kernel) < needs_root:
        why = f"Linux {machine.kernel} does not allow it to plain users"
        return why, f"{ADMINISTRATOR}use Linux 5.11 or later, or run repro-env as root"
    if is_overlay and number == errno.ENODEV:
        return "the kernel does not have the overlay file system", f"{ADMINISTRATOR}modprobe overlay"
    if is_overlay and machine.runs.kind in filesystem.NETWORK | {"overlay", "unknown"}:
        return f"an upper layer on {machine.runs.kind} is not supported", _LOCAL_DISK
    if machine.userns_clone == 0 and not machine.admin:
        return "kernel.unprivileged_userns_clone is 0", f"{ADMINISTRATOR}sysctl -w kernel.unprivileged_userns_clone=1"
    if number == errno.ENOSPC:
        setting = "user.max_user_namespaces" if check.step == "user namespace" else "user.max_pid_namespaces"
        value = f"{setting} is {machine.max_user_namespaces}" if check.step == "user namespace" else setting
        why = f"the limit is reached ({value}), or namespaces are nested too deeply"
        return why, f"{ADMINISTRATOR}sysctl -w {setting}=15000"
    if check.step == "user namespace" and number in (errno.EINVAL, errno.ENOSYS):
        why = f"Linux {machine.kernel} does not support user namespaces"
        return why, f"{ADMINISTRATOR}use a kernel with CONFIG_USER_NS, or run repro-env as root"
    if machine.apparmor == 1 and not machine.admin and machine.seccomp != 2 and number in (errno.EPERM, errno.EACCES):
        return "AppArmor does not allow it to plain users", _APPARMOR
    if is_overlay:
        return f"{_name(number)} on {machine.runs.kind}", _LOCAL_DISK
    if machine.seccomp == 2:
        return f"a seccomp filter, probably of a container engine, refuses it ({_name(number)})", _SECCOMP
    return f"{_name(number)}, by a security module, or because this process is in a chroot", _OUTSIDE


def _diagnose_disk(name: str, directory: Directory) -> Finding:
    text = f"{directory.path} ({directory.kind}): {directory.size / (1 << 30):.1f} GiB and {directory.inodes} inodes free"
    if directory.errno:
        text = f"{directory.path} ({directory.kind}) cannot be written: {_name(directory.errno)}"
        return Finding(
            name=name, state="blocked", text=text, fix="free some disk space there, use another directory, or change its owner"
        )
    if directory.size < _MIN_SIZE or directory.inodes < _MIN_INODES:
        return Finding(
            name=name, state="fallback", text=text, fix="free some disk space: an environment with torch takes several GiB"
        )
    return Finding(name=name, state="ok", text=text)


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
