"""System calls that Python 3.10 has no function for. Each raises `OSError` naming its path, as `os` functions do."""

from __future__ import annotations

import ctypes
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

_ASK = 0xFFFFFFFF
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
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_KEYCTL = {"x86_64": 250, "aarch64": 219}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_KEYCTL_JOIN_SESSION_KEYRING = 1
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, path: str = "") -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path) if path else OSError(number, os.strerror(number))
    return result


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). An empty `source`, `kind` or `options` is a null pointer."""
    _checked(
        _libc.mount(
            os.fsencode(source) or None,
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            os.fsencode(options) or None,
        ),
        target,
    )


def bind(source: str, target: str, *, recursive: bool = True) -> None:
    """Show `source` at `target`, sub-mounts included unless told otherwise."""
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))


def seal(target: str, *, read_only: bool) -> None:
    """Make the mount at `target`, and every mount below it, without devices and set-user-ID, and read-only (Linux 5.12)."""
    wanted = _MOUNT_ATTR_NODEV | _MOUNT_ATTR_NOSUID | (_MOUNT_ATTR_RDONLY if read_only else 0)
    attributes = struct.pack("=4Q", wanted, 0, 0, 0)
    _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            os.fsencode(target),
            ctypes.c_uint(_AT_RECURSIVE),
            attributes,
            ctypes.c_size_t(len(attributes)),
        ),
        target,
    )


def open_tree(path: str) -> int:
    """A detached copy of the mount at `path` and of all mounts below it (Linux 5.2). The caller closes the descriptor."""
    return _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_OPEN_TREE),
            ctypes.c_int(_AT_FDCWD),
            os.fsencode(path),
            ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE),
        ),
        path,
    )


def map_owners(tree: int, namespace: int) -> None:
    """Show the files of a detached mount with the owners that the user namespace gives them (Linux 5.12, "idmapped mounts")."""
    attributes = struct.pack("=4Q", _MOUNT_ATTR_IDMAP, 0, 0, namespace)
    flags = ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE)
    size = ctypes.c_size_t(len(attributes))
    _checked(_libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), ctypes.c_int(tree), b"", flags, attributes, size))


def attach(tree: int, target: str) -> None:
    """Mount a detached mount at `target`."""
    here, flags = ctypes.c_int(_AT_FDCWD), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _checked(
        _libc.syscall(ctypes.c_long(_SYS_MOVE_MOUNT), ctypes.c_int(tree), b"", here, os.fsencode(target), flags),
        target,
    )


def detach(target: str) -> None:
    """umount2(2), lazily: gone from the name space now, freed when nothing uses it."""
    _checked(_libc.umount2(os.fsencode(target), _MNT_DETACH), target)


def pivot_root_here() -> None:
    """Make the working directory the root; the old root stays stacked on it until it is detached (pivot_root(2), Notes)."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine, _SYS_PIVOT_ROOT["x86_64"])
    _checked(_libc.syscall(ctypes.c_long(number), b".", b"."), ".")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)))


def enter_user(namespace: int) -> None:
    """Enter the user namespace of a descriptor (setns(2))."""
    _checked(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(CLONE_NEWUSER)))


def new_session_keyring() -> None:
    """Replace the caller's session keyring with an empty one (keyctl(2)). Does nothing on a kernel without keyrings."""
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(ctypes.c_long(number), ctypes.c_int(_KEYCTL_JOIN_SESSION_KEYRING), None)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter, an array of `struct sock_filter`, for this process and all that it starts (seccomp(2))."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    _checked(
        _libc.syscall(
            ctypes.c_long(_SYS_SECCOMP[os.uname().machine]),
            ctypes.c_uint(_SECCOMP_SET_MODE_FILTER),
            ctypes.c_uint(_SECCOMP_FILTER_FLAG_SPEC_ALLOW),
            ctypes.byref(Program(len(program) // 8, program)),
        )
    )


def landlock_version() -> int:
    """The version of Landlock's interface (landlock_create_ruleset(2)). Raises `OSError` where the kernel has none."""
    number, flag = ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), ctypes.c_uint(_LANDLOCK_CREATE_RULESET_VERSION)
    return _checked(_libc.syscall(number, None, ctypes.c_size_t(0), flag))


def landlock_ruleset(rights: int) -> int:
    """A descriptor of a set of rules, in which each of these rights is refused unless a rule allows it; the caller closes it."""
    attributes = struct.pack("=Q", rights)
    number, size = ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), ctypes.c_size_t(len(attributes))
    return _checked(_libc.syscall(number, attributes, size, ctypes.c_uint(0)))


def landlock_allow(ruleset: int, rule: bytes) -> None:
    """Add a rule, a `struct landlock_path_beneath_attr` (landlock_add_rule(2))."""
    number, kind = ctypes.c_long(_SYS_LANDLOCK_ADD_RULE), ctypes.c_uint(_LANDLOCK_RULE_PATH_BENEATH)
    _checked(_libc.syscall(number, ctypes.c_int(ruleset), kind, rule, ctypes.c_uint(0)))


def landlock_restrict(ruleset: int) -> None:
    """Hold this process, and all that it starts, to the rules. It must have no_new_privs (landlock_restrict_self(2))."""
    number = ctypes.c_long(_SYS_LANDLOCK_RESTRICT_SELF)
    _checked(_libc.syscall(number, ctypes.c_int(ruleset), ctypes.c_uint(0)))


def sethostname(name: str) -> None:
    encoded = name.encode()
    _checked(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))))


def prctl(option: int, first: int = 0, second: int = 0) -> None:
    _checked(_libc.prctl(ctypes.c_int(option), *(ctypes.c_ulong(one) for one in (first, second, 0, 0))))


def personality(persona: int = _ASK) -> int:
    """Set the execution domain of programs started from here, or only ask (personality(2)). Returns what was before."""
    return _checked(_libc.personality(ctypes.c_ulong(persona)))


def capset(mask: int) -> None:
    """Set permitted, effective and inheritable capabilities to `mask` (capset(2))."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    _checked(_libc.capset(header, struct.pack("=6I", low, low, low, high, high, high)))


def loopback_socket() -> int:
    """A datagram socket to send interface requests through; the caller closes it."""
    return _checked(_libc.socket(ctypes.c_int(2), ctypes.c_int(2 | os.O_CLOEXEC), ctypes.c_int(0)))
