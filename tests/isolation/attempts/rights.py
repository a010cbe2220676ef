"""Gain capabilities, users and groups."""

from __future__ import annotations

import os
import struct
from typing import Optional

from .base import CONTROL, LIBC, Absent, add, attempt, checked, is_the_hosts, target

CAPABILITIES = {
    0: "chown", 1: "dac_override", 2: "dac_read_search", 3: "fowner", 4: "fsetid", 5: "kill", 6: "setgid", 7: "setuid",
    8: "setpcap", 9: "linux_immutable", 10: "net_bind_service", 11: "net_broadcast", 12: "net_admin", 13: "net_raw", 14: "ipc_lock",
    15: "ipc_owner", 16: "sys_module", 17: "sys_rawio", 18: "sys_chroot", 19: "sys_ptrace", 20: "sys_pacct", 21: "sys_admin",
    22: "sys_boot", 23: "sys_nice", 24: "sys_resource", 25: "sys_time", 26: "sys_tty_config", 27: "mknod", 28: "lease",
    29: "audit_write", 30: "audit_control", 31: "setfcap", 32: "mac_override", 33: "mac_admin", 34: "syslog", 35: "wake_alarm",
    36: "block_suspend", 37: "audit_read", 38: "perfmon", 39: "bpf", 40: "checkpoint_restore",
}  # fmt: skip


def capability(number: int) -> Optional[str]:
    """A capability only counts in the host's user namespace, because in another one it has no effect on the host."""
    with open("/proc/self/status") as file:
        sets = dict(line.split(":\t") for line in file if line.startswith("Cap"))
    found = [name for name, value in sets.items() if int(value, 16) >> number & 1]
    if found and not is_the_hosts("user"):
        raise Absent(f"{found} in a user namespace of the run")
    return f"in {found}" if found else None


for _number, _name in CAPABILITIES.items():
    add(f"capability_{_name}", "capabilities", capability, _number)


@attempt("capabilities")
def gain_rights_by_setuid_programs() -> Optional[str]:
    """Check PR_GET_NO_NEW_PRIVS."""
    return None if LIBC.prctl(39, 0, 0, 0, 0) == 1 else "no_new_privs is not set"


@attempt("capabilities")
def call_without_a_filter() -> Optional[str]:
    with open("/proc/self/status") as file:
        mode = next((line.split()[1] for line in file if line.startswith("Seccomp:")), "0")
    return "no seccomp filter" if mode == "0" else None


@attempt("capabilities")
def raise_own_capabilities() -> Optional[str]:
    header = struct.pack("Ii", 0x20080522, 0)
    data = struct.pack("6I", 0xFFFFFFFF, 0xFFFFFFFF, 0, 0x1FF, 0x1FF, 0)
    checked(LIBC.capset(header, data))
    return "all capabilities are effective"


@attempt("capabilities")
def become_another_user() -> Optional[str]:
    os.setresuid(12345, 12345, 12345)
    return "uid 12345"


@attempt("capabilities")
def drop_to_another_group() -> Optional[str]:
    os.setgroups([0, 6, 42])
    return f"groups {os.getgroups()}"


@attempt("capabilities")
def be_in_groups_of_the_caller() -> Optional[str]:
    found = [group for group in os.getgroups() if group not in (os.getgid(), 65534)]
    return f"groups {found}" if found else None


@attempt("capabilities")
def first_process_is_dumpable() -> Optional[str]:
    """The files in /proc of a process that is not dumpable belong to root of the host."""
    there = os.stat(f"/proc/{target()}/environ")
    return f"process {target()} is dumpable, uid {there.st_uid}" if there.st_uid == os.getuid() and not CONTROL else None
