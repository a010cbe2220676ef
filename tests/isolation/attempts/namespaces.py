"""Make and enter namespaces."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
from typing import Optional

from .base import CONTROL, HINTS, LIBC, Absent, add, attempt, checked, syscall, target

for _number, _kind in (
    (0x10000000, "user"),
    (0x20000, "mnt"),
    (0x20000000, "pid"),
    (0x40000000, "net"),
    (0x8000000, "ipc"),
    (0x4000000, "uts"),
    (0x2000000, "cgroup"),
    (0x80, "time"),
):
    add(
        f"make_a_new_{_kind}_namespace",
        "namespaces",
        lambda number=_number: f"unshare({number:#x}) works" if checked(LIBC.unshare(number)) == 0 else None,
    )

    def _join(kind: str = _kind) -> Optional[str]:
        if not CONTROL and os.stat(f"/proc/1/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino:
            raise Absent("it is our own")
        checked(LIBC.setns(os.open(f"/proc/{target()}/ns/{kind}", os.O_RDONLY), 0))
        return f"joined {kind} of process {target()}"

    add(f"join_the_{_kind}_namespace_of_the_first_process", "namespaces", _join)

    def _same(kind: str = _kind) -> Optional[str]:
        found = os.stat(f"/proc/self/ns/{kind}").st_ino
        return f"{kind}:[{found}] is the host's" if found == HINTS["namespaces"][kind] else None

    add(f"be_in_the_{_kind}_namespace_of_the_host", "namespaces", _same)


@attempt("namespaces")
def make_a_new_user_namespace_by_clone3() -> Optional[str]:
    words = (ctypes.c_uint64 * 11)()
    words[0], words[4] = 0x10000000, signal.SIGCHLD
    made = syscall("clone3", words, ctypes.sizeof(words))
    if made == 0:
        os._exit(0)
    os.waitpid(made, 0)
    return "clone3(CLONE_NEWUSER) works"


@attempt("namespaces")
def make_a_new_user_namespace_by_clone() -> Optional[str]:
    number = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
    if number is None:
        raise Absent("the number of clone is unknown")
    made = checked(LIBC.syscall(ctypes.c_long(number), ctypes.c_long(0x10000000 | signal.SIGCHLD), 0, 0, 0, 0))
    if made == 0:
        os._exit(0)
    os.waitpid(made, 0)
    return "clone(CLONE_NEWUSER) works"


@attempt("namespaces")
def find_namespaces_by_ioctl() -> Optional[str]:
    """NS_GET_USERNS and NS_GET_PARENT return descriptors of parent namespaces."""
    fd = os.open("/proc/self/ns/user", os.O_RDONLY)
    return f"parent: {fcntl.ioctl(fd, 0xB702)}"


@attempt("namespaces")
def be_root_of_the_host() -> Optional[str]:
    """If uid 0 in the run is uid 0 on the host, files in a shared directory belong to root of the host."""
    with open("/proc/self/uid_map") as file:
        words = file.read().split()
    return "uid 0 is the host's uid 0" if os.geteuid() == 0 and words[:2] == ["0", "0"] else None


@attempt("namespaces")
def write_a_uid_map() -> Optional[str]:
    with open("/proc/self/uid_map", "w") as file:
        file.write("0 0 1")
    return "uid_map can be written"
