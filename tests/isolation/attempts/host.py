"""Raise limits, and learn facts about the host."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from typing import Callable, Optional

from .base import CONTROL, HINTS, LIBC, Absent, add, attempt, checked, each, read, secret_in, target
from .kernel import content_of

# Limits


@attempt("limits")
def raise_own_priority() -> Optional[str]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before <= -20:
        raise Absent("it is the highest")
    os.setpriority(os.PRIO_PROCESS, 0, before - 1)
    return f"priority {before - 1}"


@attempt("limits")
def raise_limit_of_open_files() -> Optional[str]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    pair = (ctypes.c_uint64 * 2)(hard, hard + 1)
    checked(LIBC.prlimit(0, resource.RLIMIT_NOFILE, pair, None))
    return f"{hard + 1} files"


@attempt("limits")
def schedule_in_real_time() -> Optional[str]:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return "SCHED_FIFO"


@attempt("limits")
def never_be_killed_for_memory() -> Optional[str]:
    before = int(read("/proc/self/oom_score_adj"))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(max(-1000, before - 1)))
    return f"oom_score_adj {read('/proc/self/oom_score_adj')!r}" if int(read("/proc/self/oom_score_adj")) < before else None


@attempt("limits")
def core_files_outside() -> Optional[str]:
    pattern = read("/proc/sys/kernel/core_pattern").decode().strip()
    size = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return f"a crash here calls {pattern} on the host" if pattern.startswith("|") and size else None


# Information about the host


def same_as_host(name: str, call: Callable[[], str]) -> Optional[str]:
    found = call()
    return f"{found!r}" if found and found == HINTS["facts"].get(name) else None


def text(path: str) -> Callable[[], str]:
    return lambda: read(path).decode("utf-8", "replace").strip()


add("host_name", "facts", same_as_host, "hostname", socket.gethostname)
add("host_name_in_etc", "facts", same_as_host, "hostname", text("/etc/hostname"))
add("machine_id", "facts", same_as_host, "machine-id", text("/etc/machine-id"))
add("boot_id", "facts", same_as_host, "boot-id", text("/proc/sys/kernel/random/boot_id"))
add("product_uuid", "facts", same_as_host, "product-uuid", text("/sys/class/dmi/id/product_uuid"))
add("kernel_command_line", "facts", same_as_host, "cmdline", text("/proc/cmdline"))


@attempt("facts")
def users_of_the_host() -> Optional[str]:
    found = [line.split(":")[0] for line in text("/etc/passwd")().splitlines()]
    common = [name for name in found if name in HINTS["users"]]
    return f"{common}" if common else None


@attempt("facts")
def paths_of_the_host_in_mountinfo() -> Optional[str]:
    data = read("/proc/self/mountinfo", 1 << 20).decode("utf-8", "replace")
    found = [word for word in data.split() if word.startswith(HINTS["store"]) or "/.scratch" in word or "/docker/" in word]
    return f"{len(found)}, for example {found[0][:120]}" if found else None


@attempt("facts")
def control_group_of_the_host() -> Optional[str]:
    found = [line for line in text("/proc/self/cgroup")().splitlines() if line.split(":", 2)[2] not in ("/", "")]
    return found[0] if found else None


@attempt("facts")
def disks_of_the_host() -> Optional[str]:
    return text("/proc/partitions")().splitlines()[-1] if len(text("/proc/partitions")().splitlines()) > 2 else None


@attempt("facts")
def mounts_of_the_host() -> Optional[str]:
    return each(lambda name: secret_in(read(f"/proc/{target()}/{name}", 1 << 20), name), ("mountinfo", "mounts"))


@attempt("facts")
def timers_of_the_host() -> Optional[str]:
    return content_of("/proc/timer_list")


@attempt("facts")
def scheduler_of_the_host() -> Optional[str]:
    return each(content_of, ("/proc/sched_debug", "/sys/kernel/debug/sched/debug"))


@attempt("facts")
def number_of_the_process_on_the_host() -> Optional[str]:
    """/proc/self/sched and NSpid show the host's PID if namespaces leak."""
    with open("/proc/self/status") as file:
        found = next((line.split()[1:] for line in file if line.startswith("NSpid")), [])
    return f"{found}" if len(found) > 1 or (CONTROL and found) else None
