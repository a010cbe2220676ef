"""Read the environment, the arguments and the memory of other processes, and trace them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
from typing import Callable, List, Optional, Tuple

from .base import CONTROL, HINTS, LIBC, add, attempt, checked, each, opened, processes, read, secret_in, syscall, target

# Environment, arguments, memory


def content(name: str, pid: Callable[[], int]) -> Optional[str]:
    path = f"/proc/{pid()}/{name}"
    return secret_in(read(path, 1 << 20), path)


add("environment_of_the_first_process", "environment", content, "environ", target)
add("arguments_of_the_first_process", "environment", content, "cmdline", target)


@attempt("environment")
def environment_of_every_process() -> Optional[str]:
    return each(lambda pid: content("environ", lambda: pid), processes())


@attempt("environment")
def arguments_of_every_process() -> Optional[str]:
    return each(lambda pid: content("cmdline", lambda: pid), processes())


@attempt("environment")
def secret_in_the_own_environment() -> Optional[str]:
    return secret_in(repr(sorted(os.environ.items())).encode(), "the environment")


@attempt("environment")
def secret_in_the_own_stack() -> Optional[str]:
    """Changing os.environ does not erase the variables with which the program was executed."""
    return secret_in(read("/proc/self/environ", 1 << 20), "/proc/self/environ")


def maps(pid: int) -> List[Tuple[int, int, str]]:
    found = []
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            words = line.split()
            start, end = (int(word, 16) for word in words[0].split("-"))
            if words[1].startswith("rw"):
                found.append((start, end, words[-1]))
    return found


def scan(pid: int) -> Optional[str]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end, name in sorted(maps(pid), key=lambda area: area[1] - area[0]):
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(start)
                found = secret_in(memory.read(min(end - start, 32 << 20)), f"memory of process {pid} ({name})")
                if found:
                    return found
    return None


@attempt("memory")
def secret_in_memory_of_the_first_process() -> Optional[str]:
    return scan(target())


@attempt("memory")
def secret_in_memory_of_every_process() -> Optional[str]:
    return each(scan, [target()] if CONTROL else processes())


@attempt("memory")
def open_memory_of_the_first_process_for_writing() -> Optional[str]:
    return opened(f"/proc/{target()}/mem", os.O_RDWR)


def vm(name: str, pid: int) -> Optional[str]:
    """EFAULT means that access is permitted, but the address is not mapped."""
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_void_p * 2)(16, 8)
    try:
        call = getattr(LIBC, name)
        checked(call(pid, local, ctypes.c_ulong(1), remote, ctypes.c_ulong(1), ctypes.c_ulong(0)))
    except OSError as failed:
        if failed.errno != errno.EFAULT:
            raise
    return f"{name} of process {pid} is permitted"


add("process_vm_readv_of_the_first_process", "memory", lambda: vm("process_vm_readv", target()))
add("process_vm_writev_of_the_first_process", "memory", lambda: vm("process_vm_writev", target()))
for _name in ("maps", "smaps", "auxv", "stack", "syscall", "personality", "io", "pagemap", "fdinfo/0", "patch_state"):
    add(
        f"first_process_{_name.replace('/', '_')}",
        "processes",
        lambda name=_name: f"{len(read(f'/proc/{target()}/{name}'))} bytes" if read(f"/proc/{target()}/{name}") else None,
    )
for _name in ("exe", "cwd", "root"):
    add(f"first_process_{_name}_link", "processes", lambda name=_name: os.readlink(f"/proc/{target()}/{name}"))


@attempt("processes")
def program_of_the_first_process() -> Optional[str]:
    """If the write reaches the program, the next run or the host would execute it."""
    return opened(f"/proc/{target()}/exe", os.O_RDONLY)


@attempt("processes")
def clear_page_references_of_the_first_process() -> Optional[str]:
    return opened(f"/proc/{target()}/clear_refs", os.O_WRONLY)


@attempt("processes")
def lower_out_of_memory_score_of_the_first_process() -> Optional[str]:
    with open(f"/proc/{target()}/oom_score_adj") as file:
        before = file.read()
    with open(f"/proc/{target()}/oom_score_adj", "w") as file:
        file.write(before)
    return "oom_score_adj can be written"


@attempt("processes")
def see_processes_of_the_host() -> Optional[str]:
    with open(f"/proc/{HINTS['victim']}/cmdline", "rb") as file:
        return "the planted process is visible" if b"isolation-victim" in file.read() else None


@attempt("processes")
def find_processes_that_are_not_of_the_run() -> Optional[str]:
    """There are more processes than PID 1, its helpers and the probe."""
    found = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            found[pid] = read(f"/proc/{pid}/cmdline")[:60]
    return f"{len(found)} processes: {sorted(found.items())[:5]}" if len(found) > 3 else None


@attempt("processes")
def pin_the_first_process_to_a_processor() -> Optional[str]:
    mask = os.sched_getaffinity(target())
    os.sched_setaffinity(target(), mask)
    return f"affinity of process {target()} can be set"


@attempt("processes")
def change_limits_of_the_first_process() -> Optional[str]:
    pair = (ctypes.c_uint64 * 2)()
    checked(LIBC.prlimit(target(), resource.RLIMIT_CORE, None, pair))
    checked(LIBC.prlimit(target(), resource.RLIMIT_CORE, pair, None))
    return f"limits of process {target()} can be set"


@attempt("processes")
def move_pages_of_the_first_process() -> Optional[str]:
    syscall("move_pages", target(), 0, None, None, None, 0)
    return "move_pages is permitted"


@attempt("processes")
def robust_list_of_the_first_process() -> Optional[str]:
    head, size = ctypes.c_void_p(), ctypes.c_size_t()
    syscall("get_robust_list", target(), ctypes.byref(head), ctypes.byref(size))
    return f"an address of its memory: {head.value}"


# Tracing

SEIZE, ATTACH, DETACH = 0x4206, 16, 17


def trace(request: int, pid: int) -> Optional[str]:
    LIBC.ptrace.restype = ctypes.c_long
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    checked(LIBC.ptrace(request, pid, None, None))
    if request == ATTACH:
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0x40000000)
        LIBC.ptrace(DETACH, pid, None, None)
    return f"process {pid} can be traced"


add("trace_the_first_process", "ptrace", lambda: trace(SEIZE, target()))
add("trace_the_first_process_and_stop_it", "ptrace", lambda: trace(ATTACH, target()))
add(
    "trace_every_process",
    "ptrace",
    lambda: each(lambda pid: trace(SEIZE, pid), [target()] if CONTROL else processes()),
)
add("trace_the_parent_of_the_probe", "ptrace", lambda: trace(SEIZE, HINTS["_parent"]))
