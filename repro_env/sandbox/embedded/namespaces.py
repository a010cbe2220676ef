"""Enter namespaces, and drop the privileges that the command must not have."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
from pathlib import Path

from repro_env.sandbox import kernel
from repro_env.schema.errors import SandboxError

CAP_SYS_ADMIN = 21
_HARMLESS = (36, 35, 28)
"""BLOCK_SUSPEND, WAKE_ALARM, LEASE. In a user namespace the first two have no effect. A file's owner does not need LEASE."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def can_mount() -> bool:
    """Whether this process may mount without a user namespace, because it has CAP_SYS_ADMIN."""
    return bool(_capabilities("CapEff") >> CAP_SYS_ADMIN & 1)


def enter_user() -> None:
    """Enter a user namespace with only the caller's uid and gid, which stay the same. Raises `OSError`."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    with contextlib.suppress(FileNotFoundError):  # Linux before 3.19 does not have this file
        _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def enter(*, network: bool) -> None:
    """Enter PID (from the next fork on), IPC, UTS and, without `network`, network namespaces. Raises `OSError`."""
    kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | (0 if network else kernel.CLONE_NEWNET))


def enter_mounts() -> None:
    """Enter a mount namespace whose mounts are invisible to the host. Raises `OSError`."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)


def loopback_up() -> None:
    """Enable the interface `lo`, which is down in a new network namespace. Raises `OSError`."""
    handle = kernel.open_socket()
    try:
        answer = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16sH22x", b"lo", 0))
        (flags,) = struct.unpack_from("=H", answer, 16)
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))
    finally:
        os.close(handle)


def drop_privileges() -> None:
    """Drop all capabilities, also for uid 0, so that no program started later gains any."""
    _drop_all_but(None)


def keep_harmless_capability() -> bool:
    """Drop all capabilities except a harmless one. Returns False if this process does not have a harmless one.

    A process can neither trace nor inspect through /proc a process that has a capability which it lacks
    (`cap_ptrace_access_check`). So the command cannot access the first process of the run, although both have the same uid.
    """
    capabilities = _capabilities("CapPrm") & _capabilities("CapBnd")
    harmless = next((capability for capability in _HARMLESS if capabilities >> capability & 1), None)
    _drop_all_but(harmless)
    return harmless is not None


def _drop_all_but(kept: int | None) -> None:
    bounding_set = _capabilities("CapBnd")
    kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if capability != kept and bounding_set >> capability & 1:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    kernel.capset(0 if kept is None else 1 << kept)
    if kept is not None:  # only ambient capabilities survive the execution of a program
        kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_RAISE, kept)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def _capabilities(which: str) -> int:
    match = re.search(rf"^{which}:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if match is None:
        raise SandboxError(f"the kernel does not report the capabilities of this process ({which})", where="/proc/self/status")
    return int(match[1], 16)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123  these files require a single write(2)
        file.write(text)
