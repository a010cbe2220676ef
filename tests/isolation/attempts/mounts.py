"""Mount, unmount and change the root."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Callable, Optional

from .base import HINTS, LIBC, add, attempt, checked, host_root, opened, syscall


def permitted(call: Callable[[], Any], *denied: int) -> Optional[str]:
    """Make a call with invalid arguments. Errors other than these come after the permission check."""
    try:
        found = call()
    except OSError as failed:
        if failed.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, *denied):
            raise
        return f"permitted: {failed.strerror}"
    return f"permitted: {found}"


def mounting(source: Optional[bytes], kind: Optional[bytes], flags: int, where: bytes = b"/") -> Callable[[], Any]:
    return lambda: checked(LIBC.mount(source, where, kind, ctypes.c_ulong(flags), None))


add("mount_a_file_system", "mounts", permitted, mounting(b"none", b"no-such-kind", 0))
add("mount_bind", "mounts", permitted, mounting(b"/no/such/source", None, 4096))
add("mount_the_disk", "mounts", permitted, mounting(b"/no/such/disk", b"ext4", 1))
add("mount_make_shared", "mounts", permitted, mounting(None, None, (1 << 20) | (1 << 18)))
add("mount_fsopen", "mounts", permitted, lambda: syscall("fsopen", ctypes.c_char_p(b"tmpfs"), 0))
add("mount_fspick", "mounts", permitted, lambda: syscall("fspick", -100, ctypes.c_char_p(b"/"), 0))
add("mount_open_tree", "mounts", permitted, lambda: syscall("open_tree", -100, ctypes.c_char_p(b"/"), 1 | 0x8000))
add(
    "mount_move",
    "mounts",
    permitted,
    lambda: syscall("move_mount", -1, ctypes.c_char_p(b"x"), -1, ctypes.c_char_p(b"y"), 0),
)
add(
    "mount_set_attributes",
    "mounts",
    permitted,
    lambda: syscall("mount_setattr", -1, ctypes.c_char_p(b"x"), 0, ctypes.create_string_buffer(32), 32),
)
add(
    "pivot_root",
    "mounts",
    permitted,
    lambda: syscall("pivot_root", ctypes.c_char_p(b"/no/such/root"), ctypes.c_char_p(b"/no/such/root")),
)


@attempt("mounts")
def chroot() -> Optional[str]:
    os.chroot("/")
    return "chroot works"


@attempt("mounts", disturbs=True)
def unmount_what_covers_proc_sys() -> Optional[str]:
    checked(LIBC.umount2(b"/proc/sys", 2))
    return opened("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attempt("mounts", disturbs=True)
def unmount_the_data_to_see_below() -> Optional[str]:
    checked(LIBC.umount2(HINTS["data"].encode(), 2))
    return f"{HINTS['data']} is unmounted"


@attempt("mounts", disturbs=True)
def remount_the_root() -> Optional[str]:
    checked(LIBC.mount(None, b"/", None, ctypes.c_ulong(32 | 4096), None))
    return "/ is remounted"


@attempt("mounts", disturbs=True)
def remount_proc_sys_in_a_new_namespace() -> Optional[str]:
    """A new user namespace gives the capability to mount, but locked mounts must stay locked."""
    checked(LIBC.unshare(0x10000000 | 0x20000))
    checked(LIBC.mount(None, b"/proc/sys", None, ctypes.c_ulong(32 | 4096), None))
    return opened("/proc/sys/kernel/core_pattern", os.O_WRONLY)


@attempt("mounts", disturbs=True)
def mount_proc_in_a_new_namespace() -> Optional[str]:
    checked(LIBC.unshare(0x10000000 | 0x20000))
    checked(LIBC.mount(b"proc", b"/tmp", b"proc", ctypes.c_ulong(0), None))
    return opened("/tmp/sys/kernel/core_pattern", os.O_WRONLY)


@attempt("mounts", disturbs=True)
def mount_cgroups_in_a_new_namespace() -> Optional[str]:
    checked(LIBC.unshare(0x10000000 | 0x20000 | 0x2000000))
    checked(LIBC.mount(b"cgroup2", b"/tmp", b"cgroup2", ctypes.c_ulong(0), None))
    return f"cgroups: {os.listdir('/tmp')[:3]}"


@attempt("mounts", disturbs=True)
def copy_mounts_in_a_new_namespace() -> Optional[str]:
    """A copy of the tree without the mounts of the run shows the directories below them."""
    checked(LIBC.unshare(0x10000000 | 0x20000))
    fd = syscall("open_tree", -100, ctypes.c_char_p(HINTS["data"].encode()), 1 | 0x80000)
    return f"the host's root by a copied mount: descriptor {fd}" if host_root(fd) else None


@attempt("mounts")
def writable_host_file_systems() -> Optional[str]:
    """Mounts of a file system on disk that allow device nodes, which would stay after the run."""
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words = line.split()
            source = words[words.index("-") + 2]
            if source.startswith("/dev/") and "rw" in words[5].split(",") and "nodev" not in words[5].split(","):
                found.append(words[4])
    return f"mounted read-write, device nodes allowed: {found[:6]}" if found else None


@attempt("mounts")
def writable_mounts_with_setuid() -> Optional[str]:
    found = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            words = line.split()
            source = words[words.index("-") + 2]
            if source.startswith("/dev/") and "rw" in words[5].split(",") and "nosuid" not in words[5].split(","):
                found.append(words[4])
    return f"mounted read-write, setuid programs allowed: {found[:6]}" if found else None
