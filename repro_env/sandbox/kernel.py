"""System calls that Python 3.10 has no functions for. Each raises `OSError` with its path, as the functions of `os` do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_NODIRATIME = 0x800
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_RELATIME = 0x200000

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4

_QUERY = 0xFFFFFFFF
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x00100000
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_SYSTEM_CALLS = {
    "x86_64": {"pivot_root": 155, "keyctl": 250, "seccomp": 317},
    "aarch64": {"pivot_root": 41, "keyctl": 219, "seccomp": 277},
}
"""Numbers that depend on the machine type (`uname -m`)."""
_SHARED_SYSTEM_CALLS = {
    "open_tree": 428,
    "move_mount": 429,
    "mount_setattr": 442,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
"""Numbers that are the same on all machines."""
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: str | bytes | int | None, path: str = "") -> int:
    """Call a function of the C library. Numbers are passed as C longs. Raises `OSError` with `path`."""
    encoded = (os.fsencode(argument) if isinstance(argument, str) else argument for argument in arguments)
    result: int = getattr(_libc, name)(*(ctypes.c_long(value) if isinstance(value, int) else value for value in encoded))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path or None)
    return result


def _system_call(name: str, *arguments: str | bytes | int | None, path: str = "") -> int:
    """Make a system call that the C library may have no function for. Raises `OSError`."""
    number = (_SYSTEM_CALLS.get(os.uname().machine, {}) | _SHARED_SYSTEM_CALLS).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"{name} is not supported on {os.uname().machine}")
    return _call("syscall", number, *arguments, path=path)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). An empty `source`, `kind` or `options` is a null pointer."""
    _call("mount", source or None, target, kind or None, flags, options or None, path=target)


def bind(source: str, target: str, *, recursive: bool = True) -> None:
    """Bind `source` to `target`, including the mounts below it if `recursive`."""
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))


def seal(target: str, *, read_only: bool) -> None:
    """Make the mount at `target` and all mounts below it nodev, nosuid and, if `read_only`, read-only (Linux 5.12)."""
    flags = _MOUNT_ATTR_NODEV | _MOUNT_ATTR_NOSUID | (_MOUNT_ATTR_RDONLY if read_only else 0)
    attributes = struct.pack("=4Q", flags, 0, 0, 0)
    _system_call("mount_setattr", _AT_FDCWD, target, _AT_RECURSIVE, attributes, len(attributes), path=target)


def open_tree(path: str) -> int:
    """Copy the mount at `path` and all mounts below it, detached (Linux 5.2). The caller must close the descriptor."""
    return _system_call("open_tree", _AT_FDCWD, path, _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE, path=path)


def map_owners(tree: int, namespace: int) -> None:
    """Map the owners of the files in a detached mount as a user namespace does (Linux 5.12, "idmapped mounts")."""
    attributes = struct.pack("=4Q", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
    _system_call("mount_setattr", tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes, len(attributes))


def attach(tree: int, target: str) -> None:
    """Mount a detached mount at `target`."""
    _system_call("move_mount", tree, b"", _AT_FDCWD, target, _MOVE_MOUNT_F_EMPTY_PATH, path=target)


def detach(target: str) -> None:
    """Unmount lazily: the mount disappears from the namespace at once, and is freed after its last use (umount2(2))."""
    _call("umount2", target, _MNT_DETACH, path=target)


def pivot_root_here() -> None:
    """Make the working directory the root. The old root stays mounted on top of it until it is detached (pivot_root(2), Notes)."""
    _system_call("pivot_root", b".", b".", path=".")


def unshare(flags: int) -> None:
    _call("unshare", flags)


def enter_namespace(namespace: int) -> None:
    """Enter the namespace of a descriptor (setns(2))."""
    _call("setns", namespace, 0)


def new_session_keyring() -> None:
    """Replace the caller's session keyring with an empty one (keyctl(2)). Does nothing on a kernel without keyrings."""
    with contextlib.suppress(OSError):
        _system_call("keyctl", _KEYCTL_JOIN_SESSION_KEYRING, None)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter for this process and its children (seccomp(2)). `program`: an array of `struct sock_filter`."""
    filters = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(filters))
    _system_call("seccomp", _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW, header)


def landlock_version() -> int:
    """The version of Landlock's ABI (landlock_create_ruleset(2)). Raises `OSError` if the kernel does not have Landlock."""
    return _system_call("landlock_create_ruleset", None, 0, _LANDLOCK_CREATE_RULESET_VERSION)


def landlock_ruleset(rights: int) -> int:
    """Make a ruleset that refuses these rights except where a rule allows them. The caller must close the descriptor."""
    attributes = struct.pack("=Q", rights)
    return _system_call("landlock_create_ruleset", attributes, len(attributes), 0)


def landlock_allow(ruleset: int, rule: bytes) -> None:
    """Add a rule, a `struct landlock_path_beneath_attr` (landlock_add_rule(2))."""
    _system_call("landlock_add_rule", ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)


def landlock_restrict(ruleset: int) -> None:
    """Apply the rules to this process and its children. It must have no_new_privs (landlock_restrict_self(2))."""
    _system_call("landlock_restrict_self", ruleset, 0)


def sethostname(name: str) -> None:
    _call("sethostname", name, len(name.encode()))


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    _call("prctl", option, first, second, 0, 0)


def personality(persona: int = _QUERY) -> int:
    """Set the execution domain of this process and its children, or only query it (personality(2)). Returns the previous one."""
    return _call("personality", persona)


def capset(mask: int) -> None:
    """Set permitted, effective and inheritable capabilities to `mask` (capset(2))."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _call("capset", header, struct.pack("=6I", low, low, low, high, high, high))


def open_socket() -> int:
    """Open a datagram socket for interface requests. The caller must close it."""
    return _call("socket", 2, 2 | os.O_CLOEXEC, 0)
