"""What observations of a machine mean for a run, in words and with the fix. Pure: tested from recorded numbers."""

from __future__ import annotations

import errno
import re
from typing import Literal

from repro_env.model.codec import Frozen
from repro_env.run import filesystem
from repro_env.run.observations import Folder, Observations, Step

State = Literal["ok", "fallback", "blocked", "absent"]
"""`absent`: not there, and nothing that is asked for without a word needs it."""

_LOW = 1 << 30
"""Bytes: less than this is no room for an environment."""
_FEW = 50_000
"""Inodes: a larger environment has as many files."""
ADMINISTRATOR = "as root: "
"""How each fix begins that needs an administrator of the machine. All others are in the user's own hands."""
_USERNS = f"{ADMINISTRATOR}sysctl -w kernel.unprivileged_userns_clone=1"
_MAX = f"{ADMINISTRATOR}sysctl -w user.max_user_namespaces=15000"
_APPARMOR = f"{ADMINISTRATOR}sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile with `userns,` for your python"
_SECCOMP = (
    "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined, or run outside of it"
)
_OUTSIDE = "run outside of the container or chroot, or as root"
_ISOLATION = ("user namespace", "name spaces", "mounts", "loopback")
"""Findings that only runs in the image need."""
HOST = "--runner host uses the live environment, without isolation"
DOCKER = "--runner docker uses a container"


class Finding(Frozen, frozen=True, kw_only=True):
    """One line of the answer."""

    name: str
    state: State
    text: str
    fix: str
    """Empty when there is nothing to mend."""


def works(findings: tuple[Finding, ...]) -> bool:
    """Whether `exec` will run here, perhaps with a fall-back."""
    return all(finding.state != "blocked" for finding in findings)


def alternatives(findings: tuple[Finding, ...], *, engine: bool) -> tuple[str, ...]:
    """What works on a machine that refuses the default runner its isolation, and nothing else. `engine`: there is one."""
    blocked = {finding.name for finding in findings if finding.state == "blocked"}
    if not blocked or not blocked.issubset(_ISOLATION):
        return ()
    return (
        "capture, check, diff, rebuild, push and pack need no namespaces",
        *([f"exec, verify, sensitivity and shell: {DOCKER}"] if engine else []),
        f"exec, verify and sensitivity: {HOST}",
    )


def diagnose(seen: Observations) -> tuple[Finding, ...]:
    """The findings in the order in which a run needs the things."""
    tried = {one.what: one.errno for one in seen.tried}
    rooms = [_room("store", seen.store), _room("runs", seen.runs)]
    if seen.store.errno or seen.runs.errno:
        return tuple(rooms)  # there was no place to try anything
    found = [_user(seen, tried)]
    if found[-1].state != "blocked":
        found.append(_spaces(seen, tried))
    if found[-1].state != "blocked":
        found.append(_mounts(seen, tried))
    if found[-1].state != "blocked":
        found += [_proc(tried), _loopback(tried), _root(seen, tried), _workspace(seen, tried), _removal(tried)]
    return (*found, *rooms, _links(seen, tried))


def _user(seen: Observations, tried: dict[Step, int]) -> Finding:
    name = "user namespace"
    if seen.admin and seen.uid == 0:
        number = tried.get("other user", 0)
        if number == 0:
            return _ok(name, "can be made; root inside is an unprivileged user outside")
        return Finding(
            name=name,
            state="fallback",
            text=f"root inside is root outside: idmapped mounts are refused in {seen.store.path} or {seen.runs.path} ({_name(number)})",
            fix="use Linux 5.12 or later and a file system that supports them (ext4, xfs, btrfs), or run as a plain user",
        )
    if seen.admin:
        return _ok(name, "not needed: this process may mount by itself")
    number = tried.get("user namespace", errno.ENOSYS)
    if number == 0:
        refused = tried.get("user map", 0)
        if refused == 0:
            return _ok(name, "can be made")
        if seen.apparmor == 1:
            return _blocked(name, "AppArmor takes every right from user namespaces of plain users", _APPARMOR)
        return _blocked(name, f"can be made, but uid {seen.uid} cannot be kept in it ({_name(refused)})", _outside(seen))
    if seen.userns_clone == 0:
        return _blocked(name, "plain users may not make one (kernel.unprivileged_userns_clone is 0)", _USERNS)
    if seen.max_user_namespaces == 0:
        return _blocked(name, "none may be made (user.max_user_namespaces is 0)", _MAX)
    if number == errno.ENOSPC:
        return _blocked(name, f"no more may be made here (limit {seen.max_user_namespaces}, or nested too deep)", _MAX)
    if number in (errno.EINVAL, errno.ENOSYS) or _version(seen.kernel) < (3, 8):
        return _blocked(name, f"Linux {seen.kernel} has none", f"{ADMINISTRATOR}use a kernel with CONFIG_USER_NS, or run as root")
    if seen.apparmor == 1 and number in (errno.EPERM, errno.EACCES) and seen.seccomp != 2:
        return _blocked(name, "AppArmor refuses it to plain users", _APPARMOR)
    if seen.seccomp == 2:
        return _blocked(name, f"a seccomp filter refuses it ({_name(number)}), as container engines set one", _SECCOMP)
    return _blocked(
        name,
        f"refused ({_name(number)}): by a security module, or because this process is in a chroot",
        _OUTSIDE,
    )


def _spaces(seen: Observations, tried: dict[Step, int]) -> Finding:
    for what in ("name spaces", "network namespace"):
        number = tried.get(what, errno.ENOSYS)
        if number:
            text = f"{'those for processes, IPC and host name' if what == 'name spaces' else 'one for the network'} are refused ({_name(number)})"
            return _blocked(
                "name spaces", text, _MAX.replace("user.max_user", "user.max_pid") if number == errno.ENOSPC else _outside(seen)
            )
    return _ok("name spaces", "processes, IPC, host name and network can be apart")


def _mounts(seen: Observations, tried: dict[Step, int]) -> Finding:
    number = tried.get("mounts", errno.ENOSYS) or tried.get("memory", errno.ENOSYS)
    if number == 0:
        return _ok("mounts", "can be made")
    if seen.apparmor == 1 and not seen.admin:
        return _blocked("mounts", f"AppArmor takes every right from user namespaces of plain users ({_name(number)})", _APPARMOR)
    return _blocked("mounts", f"refused ({_name(number)}){' by a seccomp filter' if seen.seccomp == 2 else ''}", _outside(seen))


def _proc(tried: dict[Step, int]) -> Finding:
    number = tried.get("proc", 0)
    if number == 0:
        return _ok("/proc", "of its own")
    return Finding(
        name="/proc",
        state="fallback",
        text=f"the host's is shown: a fresh one is refused ({_name(number)})",
        fix="in a container: --security-opt systempaths=unconfined",
    )


def _loopback(tried: dict[Step, int]) -> Finding:
    number = tried.get("loopback", 0)
    return (
        _ok("loopback", "comes up")
        if number == 0
        else _blocked("loopback", f"does not come up ({_name(number)})", "run with --network")
    )


def _root(seen: Observations, tried: dict[Step, int]) -> Finding:
    disk, memory = tried.get("root on disk", errno.ENOSYS), tried.get("root in memory", errno.ENOSYS)
    if disk == 0:
        return _ok("root", "overlay")
    why, fix = _why(disk, seen, seen.runs.kind)
    if memory == 0:
        return Finding(
            name="root", state="fallback", text=f"overlay with its upper side in memory: on disk it is refused, {why}", fix=fix
        )
    how = "copied once" if tried.get("hard link") else "linked once"
    why, fix = _why(memory, seen, seen.store.kind)
    return Finding(
        name="root", state="fallback", text=f"a tree of all layers, {how} for each image: overlay is refused, {why}", fix=fix
    )


def _workspace(seen: Observations, tried: dict[Step, int]) -> Finding:
    number = tried.get("workspace", errno.ENOSYS)
    if number == 0:
        return _ok("workspace", f"overlay in {seen.runs.path} ({seen.runs.kind})")
    why, fix = _why(number, seen, seen.runs.kind)
    text = f"the source is copied for each run: overlay is refused in {seen.runs.path}, {why}"
    return Finding(name="workspace", state="fallback", text=text, fix=fix)


def _why(number: int, seen: Observations, kind: str) -> tuple[str, str]:
    """Why overlay is refused, and what helps."""
    if not seen.admin and _version(seen.kernel) < (5, 11):
        return f"Linux {seen.kernel} allows it to root alone", f"{ADMINISTRATOR}use Linux 5.11 or later, or run as root"
    if number == errno.ENODEV:
        return "the kernel has no overlay file system", f"{ADMINISTRATOR}modprobe overlay"
    if kind in filesystem.NETWORK or kind in ("overlay", "unknown"):
        return f"the file system {kind} cannot be its upper side", "keep runs on a local disk: exec --runs DIR"
    if seen.apparmor == 1 and not seen.admin and number in (errno.EPERM, errno.EACCES):
        return "by AppArmor", _APPARMOR
    return f"{_name(number)} on {kind}", "keep the store and the runs on ext4, xfs or btrfs"


def _removal(tried: dict[Step, int]) -> Finding:
    number = tried.get("removal", 0)
    if number == 0:
        return _ok("removal", "a layer can take away what a lower one has")
    text = f"an image with a layer that takes something away cannot be unpacked ({_name(number)})"
    return Finding(name="removal", state="fallback", text=text, fix=f"{ADMINISTRATOR}use Linux 5.8 or later, or run as root")


def _room(name: str, folder: Folder) -> Finding:
    if folder.errno in (errno.ENOSPC, errno.EDQUOT):
        return _blocked(name, f"{folder.path} is full ({folder.kind})", "free some room there")
    if folder.errno:
        return _blocked(
            name, f"{folder.path} cannot be written ({_name(folder.errno)})", "name another folder, or change its owner"
        )
    text = f"{folder.path} ({folder.kind}): {folder.size / (1 << 30):.1f} GiB free"
    if folder.size < _LOW:
        return Finding(
            name=name, state="fallback", text=text, fix="free some room there: an environment with torch takes several GiB"
        )
    if folder.inodes < _FEW:
        return Finding(
            name=name,
            state="fallback",
            text=f"{text}, {folder.inodes} inodes",
            fix="remove files there: it is nearly out of inodes",
        )
    return _ok(name, text)


def _links(seen: Observations, tried: dict[Step, int]) -> Finding:
    number = tried.get("hard link", 0)
    if number == 0:
        return _ok("hard links", f"work in {seen.store.path}")
    text = f"do not work in {seen.store.path} ({_name(number)}): without overlay, files are copied"
    return Finding(name="hard links", state="fallback", text=text, fix="keep the store on ext4, xfs or btrfs")


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, state="ok", text=text, fix="")


def _blocked(name: str, text: str, fix: str) -> Finding:
    return Finding(name=name, state="blocked", text=text, fix=fix)


def _outside(seen: Observations) -> str:
    return _SECCOMP if seen.seccomp == 2 else _OUTSIDE


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
