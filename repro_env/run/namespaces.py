"""Enter namespaces, and drop privileges that the command must not have."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from pathlib import Path

from repro_env.model.errors import SandboxError
from repro_env.run import kernel

CAP_SYS_ADMIN = 21
_HARMLESS = (36, 35, 28)
"""BLOCK_SUSPEND WAKE_ALARM LEASE. In a user namespace the first two have no effect; LEASE adds nothing for a file's owner."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def can_mount() -> bool:
    """Whether this process may mount without a user namespace: it has CAP_SYS_ADMIN."""
    return bool(_capabilities("CapEff") >> CAP_SYS_ADMIN & 1)


def enter_user() -> None:
    """A user namespace in which the caller is who they are, and nobody else exists. Raises `OSError`."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    map_user(uid, gid)


def map_user(uid: int, gid: int) -> None:
    """Be `uid` and `gid`, the numbers from before, in the user namespace just made. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):  # Linux before 3.19 has no such file and needs none
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def enter(*, network: bool) -> None:
    """Name spaces for processes (from the next fork on), IPC, host name and, without `network`, interfaces."""
    kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | (0 if network else kernel.CLONE_NEWNET))


def enter_mounts() -> None:
    """Mounts of our own, that the host never sees. Raises `OSError`."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def loopback_up() -> None:
    """Bring up `lo`, which a fresh network namespace has but leaves down. Raises `OSError`."""
    handle = kernel.loopback_socket()
    try:
        answer = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        (flags,) = struct.unpack_from("=H", answer, 16)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))
    finally:
        os.close(handle)


def drop_privileges() -> None:
    """Drop every capability, also for uid 0, so that no program started from here on gains one."""
    _keep(None)


def keep_one() -> bool:
    """Drop every capability except a harmless one. Returns False if this process has no harmless one to keep.

    A process cannot trace another one, or inspect it through /proc, that has a capability which the tracer
    lacks (`cap_ptrace_access_check`). So a run's command cannot access its first process, although both have the same uid.
    """
    held = _capabilities("CapPrm") & _capabilities("CapBnd")
    kept = next((capability for capability in _HARMLESS if held >> capability & 1), None)
    _keep(kept)
    return kept is not None


def _keep(kept: int | None) -> None:
    held = _capabilities("CapBnd")
    kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if capability != kept and held >> capability & 1:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    kernel.capset(0 if kept is None else 1 << kept)
    if kept is not None:  # a started program keeps ambient capabilities
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, kept)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def _capabilities(which: str) -> int:
    match = re.search(rf"^{which}:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if match is None:
        raise SandboxError(f"the kernel does not say which capabilities there are ({which})", where="/proc/self/status")
    return int(match[1], 16)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123  one write(2), as these files demand
        file.write(text)
