"""Use open descriptors of the caller and of other processes."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from typing import Optional

from .base import (
    HINTS,
    Absent,
    Sent,
    add,
    attempt,
    below,
    descriptors,
    each,
    host_root,
    inherited,
    processes,
    read,
    secret_in,
    syscall,
    target,
)


@attempt("descriptors")
def inherited_descriptors() -> Optional[str]:
    found = [f"{fd} -> {os.readlink(f'/proc/self/fd/{fd}')}" for fd in inherited()]
    return ", ".join(found) or None


@attempt("descriptors")
def read_secret_by_inherited_descriptors() -> Optional[str]:
    return each(lambda fd: secret_in(os.pread(fd, 4096, 0), f"descriptor {fd}"), inherited())


@attempt("descriptors")
def host_root_by_inherited_descriptors() -> Optional[str]:
    return next((f"descriptor {fd}" for fd in inherited() if host_root(fd)), None)


@attempt("descriptors")
def inherited_socket() -> Optional[str]:
    return next((f"descriptor {fd}" for fd in inherited() if stat.S_ISSOCK(os.fstat(fd).st_mode)), None)


def pidfd(pid: int) -> int:
    return syscall("pidfd_open", pid, 0)


@attempt("descriptors")
def list_descriptors_of_the_first_process() -> Optional[str]:
    """The probe has the standard descriptors too, so only others count."""
    links = {path: os.readlink(path) for path in descriptors(target())}
    found = [f"{path} -> {link}" for path, link in links.items() if int(path.rsplit("/", 1)[1]) > 2 and link != "/dev/null"]
    return ", ".join(sorted(found)) or None


@attempt("descriptors")
def read_canary_by_descriptors_of_the_first_process() -> Optional[str]:
    return each(below, descriptors(target()))


@attempt("descriptors")
def read_canary_by_descriptors_of_every_process() -> Optional[str]:
    return each(lambda pid: each(below, descriptors(pid)), processes()[-40:])


@attempt("descriptors")
def read_secret_in_files_open_in_the_first_process() -> Optional[str]:
    return each(lambda path: secret_in(read(path, 1 << 20), path), descriptors(target()))


@attempt("descriptors")
def copy_a_descriptor_of_the_first_process() -> Optional[str]:
    fd = syscall("pidfd_getfd", pidfd(target()), 0, 0)
    return f"descriptor 0 of process {target()} is {os.readlink(f'/proc/self/fd/{fd}')}"


@attempt("descriptors")
def copy_descriptors_of_every_process() -> Optional[str]:
    return each(lambda pid: f"process {pid}: {syscall('pidfd_getfd', pidfd(pid), 1, 0)}", processes()[-40:])


@attempt("descriptors")
def compare_with_the_first_process() -> Optional[str]:
    return f"kcmp gives {syscall('kcmp', os.getpid(), target(), 2, 0, 0)}"


def stdio(fd: int) -> Optional[str]:
    """Evidence that a standard descriptor is a file of the host, which can be reopened with more rights."""
    there = os.fstat(fd)
    if [there.st_dev, there.st_ino] not in HINTS["stdio"]:
        return None
    return f"descriptor {fd} is the caller's own {os.readlink(f'/proc/self/fd/{fd}')}"


for _fd, _name in enumerate(("stdin", "stdout", "stderr")):
    add(f"{_name}_is_a_file_or_terminal_of_the_caller", "descriptors", stdio, _fd)


@attempt("descriptors")
def overwrite_what_stdin_reads() -> Optional[str]:
    """With `exec ... < file` the file is open for reading, and can be opened for writing through /proc."""
    if not stat.S_ISREG(os.fstat(0).st_mode):
        raise Absent("stdin is not a file")
    fd = os.open("/proc/self/fd/0", os.O_WRONLY)
    os.pwrite(fd, b"probe", 0)
    raise Sent("wrote to the file that is stdin")


@attempt("descriptors")
def read_what_stderr_held_before() -> Optional[str]:
    if not stat.S_ISREG(os.fstat(2).st_mode):
        raise Absent("stderr is not a file")
    return secret_in(read("/proc/self/fd/2"), "the file that is stderr")


@attempt("descriptors")
def overwrite_what_stderr_held_before() -> Optional[str]:
    if not stat.S_ISREG(os.fstat(2).st_mode):
        raise Absent("stderr is not a file")
    fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) & ~os.O_APPEND)
    try:
        os.pwrite(2, b"probe", 0)
    finally:
        fcntl.fcntl(2, fcntl.F_SETFL, fcntl.fcntl(2, fcntl.F_GETFL) | os.O_APPEND)
    raise Sent("wrote at the start of the file that is stderr")


@attempt("descriptors")
def change_flags_of_the_callers_descriptor() -> Optional[str]:
    """The caller shares the flags of an open file: with O_NONBLOCK, the caller's own reads fail."""
    before = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, before | os.O_NONBLOCK)
    raise Sent("stdin is non-blocking")


@attempt("descriptors")
def receive_a_descriptor_from_a_socket_of_the_data() -> Optional[str]:
    with socket.socket(socket.AF_UNIX) as near:
        near.settimeout(0.5)
        near.connect(HINTS["data"] + "/socket")
        near.sendall(b"descriptor")
        _, found, _, _ = near.recvmsg(64, socket.CMSG_SPACE(4))
        if not found:
            return None
        fd = struct.unpack("i", found[0][2][:4])[0]
        return f"the host passed {os.readlink(f'/proc/self/fd/{fd}')}: {host_root(fd)}"
