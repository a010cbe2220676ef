"""Write to read-only paths, and leave files on the host that do something there later."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
import sys
from typing import Any, Callable, List, Optional

from .base import (
    HINTS,
    LIBC,
    NONCE,
    Absent,
    Sent,
    add,
    attempt,
    canaries,
    checked,
    descriptors,
    inherited,
    opened,
    target,
    write_below,
)

# Writing to read-only paths


def write_data_file() -> Optional[str]:
    path = HINTS["data"] + f"/probe-wrote-{NONCE[:8]}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    raise Sent(path)


DATA = HINTS["data"] + "/data.txt"


def append_data() -> Optional[str]:
    with open(DATA, "ab") as file:
        file.write(b"probe")
    raise Sent(DATA)


def reopen_data() -> Optional[str]:
    fd = os.open(DATA, os.O_RDONLY)
    os.write(os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_APPEND), b"probe")
    raise Sent(DATA)


def map_data() -> Optional[str]:
    fd = os.open(DATA, os.O_RDONLY)
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory[0:1] = b"X"
    raise Sent(DATA)


def sent(what: str, *calls: Callable[[], Any]) -> Optional[str]:
    for call in calls:
        call()
    raise Sent(what)


def link_data() -> Optional[str]:
    os.link(DATA, HINTS["checkpoints"] + "/probe-hard-link")
    with open(HINTS["checkpoints"] + "/probe-hard-link", "ab") as file:
        file.write(b"probe")
    raise Sent(DATA)


def remount_data() -> Optional[str]:
    remount = 32 | 4096  # MS_REMOUNT, MS_BIND
    checked(LIBC.mount(None, HINTS["data"].encode(), None, remount, None))
    return append_data()


def set_immutable(path: str) -> Optional[str]:
    fd = os.open(path, os.O_RDONLY)
    flags = struct.pack("l", 0x10)  # FS_IMMUTABLE_FL
    fcntl.ioctl(fd, 0x40086602, flags)
    fcntl.ioctl(fd, 0x40086602, struct.pack("l", 0))  # undone, so that the host can remove the file
    return f"{path} was immutable"


add("data_create_a_file", "writes", write_data_file)
add("data_append", "writes", append_data)
add("data_reopen_for_writing_by_proc", "writes", reopen_data)
add("data_map_shared_for_writing", "writes", map_data)
add("data_change_mode", "writes", lambda: sent(DATA, lambda: os.chmod(DATA, 0o777)))
add("data_change_owner", "writes", lambda: sent(DATA, lambda: os.chown(DATA, 12345, 12345)))
add("data_change_times", "writes", lambda: sent(DATA, lambda: os.utime(DATA, (1, 1))))
add("data_set_attribute", "writes", lambda: sent(DATA, lambda: os.setxattr(DATA, "user.probe", b"x")))
add("data_rename", "writes", lambda: sent(DATA, lambda: os.rename(DATA, DATA + ".moved")))
add("data_truncate", "writes", lambda: sent(DATA, lambda: os.truncate(DATA, 3)))
add("data_delete", "writes", lambda: sent(DATA, lambda: os.unlink(HINTS["data"] + "/delete-me.txt")))
add("data_write_through_a_hard_link", "writes", link_data)
add("data_remount_writable", "writes", remount_data)
add("data_make_immutable", "writes", set_immutable, DATA)
add("checkpoints_make_immutable", "writes", set_immutable, HINTS["checkpoints"])


def write_everywhere(bases: List[str], name: str) -> Optional[str]:
    """Try all bases, because some may lead into the run's own tree and others out of it."""
    error: Optional[OSError] = None
    done = []
    for base in bases:
        try:
            done.append(write_below(base, name))
        except OSError as failed:
            error = error or failed
    if done:
        raise Sent(f"{done}")
    if error:
        raise error
    return None


@attempt("writes")
def write_by_root_of_the_first_process() -> Optional[str]:
    return write_everywhere([f"/proc/{target()}/root"], "root")


@attempt("writes")
def write_by_descriptors_of_the_first_process() -> Optional[str]:
    return write_everywhere(descriptors(target()), "fd1")


@attempt("writes")
def write_by_inherited_descriptors() -> Optional[str]:
    return write_everywhere([f"/proc/self/fd/{fd}" for fd in inherited()], "own")


def mark(path: str) -> Optional[str]:
    """Append a line to a file that other runs and the host use. The host checks whether it arrived."""
    with open(path, "ab") as file:
        file.write(f"# probe-wrote-{NONCE[:8]}\n".encode())
    raise Sent(path)


@attempt("writes", disturbs=True)
def change_the_environment_in_the_store() -> Optional[str]:
    return mark(os.path.join(HINTS["environment"], "pyvenv.cfg"))


@attempt("writes", disturbs=True)
def change_the_interpreter_in_the_store() -> Optional[str]:
    return mark(os.__file__)


@attempt("writes", disturbs=True)
def change_the_running_program() -> Optional[str]:
    return sent("/proc/self/exe", lambda: os.open("/proc/self/exe", os.O_WRONLY))


@attempt("writes", disturbs=True)
def change_code_of_repro_env() -> Optional[str]:
    directories = sorted({path for path in sys.path if path.startswith("/.repro-env")})
    if not directories:
        raise Absent("no code of repro-env on sys.path")
    return sent(directories[0], lambda: os.close(os.open(f"{directories[0]}/probe-wrote-{NONCE[:8]}", os.O_WRONLY | os.O_CREAT)))


@attempt("writes", disturbs=True)
def change_a_file_of_the_source() -> Optional[str]:
    return mark("source.txt")


# Files that stay on the host after the run


def set_user_id(path: str) -> Optional[str]:
    with open(path, "wb") as file:
        file.write(b"#!/bin/sh\n")
    os.chmod(path, 0o6755)
    raise Sent(path)


def file_capability(path: str) -> Optional[str]:
    with open(path, "wb") as file:
        file.write(b"#!/bin/sh\n")
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 1 << 21, 0, 0, 0))
    raise Sent(path)


def special(directory: str, kind: int, major: int, minor: int) -> Optional[str]:
    """Make a device node. Returns evidence if it can be opened. Otherwise the host checks whether the node exists."""
    path = f"{directory}/probe-device-{kind}-{major}-{minor}"
    os.mknod(path, kind | 0o600, os.makedev(major, minor))
    try:
        return opened(path)
    except OSError as failed:
        raise Sent(f"{path} was made, and opening it fails: {failed}") from failed


def foreign_owner(path: str) -> Optional[str]:
    with open(path, "wb"):
        pass
    os.chown(path, 12345, 12345)
    raise Sent(path)


def leave_link(path: str) -> Optional[str]:
    os.symlink(canaries()[0], path)
    raise Sent(path)


def leave_pipe(path: str) -> Optional[str]:
    os.mkfifo(path)
    raise Sent(path)


def leave_root_owned(path: str) -> Optional[str]:
    with open(path, "wb"):
        pass
    os.chown(path, 0, 0)
    raise Sent(path)


for _place, _directory in (("checkpoints", HINTS["checkpoints"]), ("outputs", ".")):
    add(f"leave_a_setuid_program_in_{_place}", "left", set_user_id, f"{_directory}/probe-setuid")
    add(f"leave_a_file_capability_in_{_place}", "left", file_capability, f"{_directory}/probe-capability")
    add(f"leave_a_file_of_another_user_in_{_place}", "left", foreign_owner, f"{_directory}/probe-foreign")
    add(f"leave_a_file_of_root_in_{_place}", "left", leave_root_owned, f"{_directory}/probe-root-owned")
    add(f"leave_a_block_device_in_{_place}", "left", special, _directory, stat.S_IFBLK, *HINTS["disk"])
    add(f"leave_a_symlink_to_a_host_file_in_{_place}", "left", leave_link, f"{_directory}/probe-symlink")
    add(f"leave_a_named_pipe_in_{_place}", "left", leave_pipe, f"{_directory}/probe-pipe")
