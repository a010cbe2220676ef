"""Build the seccomp filter with the system calls that a run may not make (seccomp(2)). Pure: the filter is bytes.

The filter is a deny list, so that a run sees the same kernel as other programs. It refuses calls that reach objects without a
namespace (keyrings, vsock, the kernel's log, its modules), calls that give more rights in a nested sandbox (user namespaces,
mounts), calls that write to a terminal's input, and calls that make set-user-ID programs. Calls with arguments in memory, which
a filter cannot read, fail as not implemented (`clone3`, `openat2`, io_uring), so that the C library uses older calls instead.
"""

from __future__ import annotations

import errno
import os
import struct

from repro_env.schema.codec import Frozen

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH of `uname -m` (linux/audit.h)."""
_X32 = 0x40000000
"""Call numbers from this one on belong to the x32 ABI, which a filter for x86-64 would not recognize."""
_NEWUSER = 0x10000000
_SETUID = 0o4000
_CREATES = os.O_CREAT | 0o20000000
"""Flags of open(2) for which it uses its mode: O_CREAT, and the bit that only O_TMPFILE has."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl(2): TIOCSTI writes to a terminal's input, TIOCLINUX pastes into the console's."""
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK (socket(2)): families that namespaces isolate."""


class _Call(Frozen, frozen=True):
    """A system call with its numbers on x86-64 and 64-bit Arm; None if the architecture does not have it."""

    name: str
    x86_64: int | None
    aarch64: int | None

    def number(self, machine: str) -> int | None:
        return self.x86_64 if machine == "x86_64" else self.aarch64


_MISSING = (
    _Call("add_key", 248, 217),
    _Call("request_key", 249, 218),
    _Call("keyctl", 250, 219),
    _Call("io_uring_setup", 425, 425),
    _Call("io_uring_enter", 426, 426),
    _Call("io_uring_register", 427, 427),
    _Call("clone3", 435, 435),
    _Call("openat2", 437, 437),
)
"""Calls that fail with ENOSYS."""
_REFUSED = (
    _Call("setns", 308, 268),
    _Call("mount", 165, 40),
    _Call("umount2", 166, 39),
    _Call("pivot_root", 155, 41),
    _Call("open_tree", 428, 428),
    _Call("move_mount", 429, 429),
    _Call("fsopen", 430, 430),
    _Call("fsconfig", 431, 431),
    _Call("fsmount", 432, 432),
    _Call("fspick", 433, 433),
    _Call("mount_setattr", 442, 442),
    _Call("open_tree_attr", 467, 467),
    _Call("open_by_handle_at", 304, 265),
    _Call("bpf", 321, 280),
    _Call("perf_event_open", 298, 241),
    _Call("userfaultfd", 323, 282),
    _Call("fanotify_init", 300, 262),
    _Call("syslog", 103, 116),
    _Call("init_module", 175, 105),
    _Call("finit_module", 313, 273),
    _Call("delete_module", 176, 106),
    _Call("kexec_load", 246, 104),
    _Call("kexec_file_load", 320, 294),
    _Call("reboot", 169, 142),
    _Call("swapon", 167, 224),
    _Call("swapoff", 168, 225),
    _Call("acct", 163, 89),
    _Call("quotactl", 179, 60),
    _Call("quotactl_fd", 443, 443),
    _Call("settimeofday", 164, 170),
    _Call("clock_settime", 227, 112),
    _Call("clock_adjtime", 305, 266),
    _Call("iopl", 172, None),
    _Call("ioperm", 173, None),
    _Call("vhangup", 153, 58),
)
"""Calls that fail with EPERM for all arguments."""
_SOCKET = _Call("socket", 41, 198)
_IOCTL = _Call("ioctl", 16, 29)
_OF_A_PROCESS = (
    _Call("prlimit64", 302, 261),
    _Call("sched_setparam", 142, 118),
    _Call("sched_setscheduler", 144, 119),
    _Call("sched_setaffinity", 203, 122),
    _Call("sched_setattr", 314, 274),
)
"""Calls whose first argument is a PID. PID 1 is refused, because on some kernels its equal uid would allow the call."""
_NAMESPACES = (_Call("clone", 56, 220), _Call("unshare", 272, 97))
"""Calls whose first argument has flags for new namespaces."""
_MODES = (
    (_Call("chmod", 90, None), 1),
    (_Call("fchmod", 91, 52), 1),
    (_Call("fchmodat", 268, 53), 2),
    (_Call("fchmodat2", 452, 452), 2),
    (_Call("creat", 85, None), 1),
    (_Call("mknod", 133, None), 1),
    (_Call("mknodat", 259, 33), 2),
)
"""Calls, and the index of the argument with a file mode."""
_OWNERS = (_Call("chown", 92, None), _Call("fchown", 93, 55), _Call("lchown", 94, None), _Call("fchownat", 260, 54))
"""Calls that do nothing and return 0: root in a run may not change owners, but tar and `cp -a` as root expect to."""
_OPENS = ((_Call("open", 2, None), 1, 2), (_Call("openat", 257, 56), 2, 3))
"""Calls, and the indices of the arguments with flags and mode."""

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def program(machine: str, *, root: bool) -> bytes | None:
    """The filter as an array of `struct sock_filter` for a machine type (`uname -m`); None if it is not supported.

    `root`: whether the command's uid is 0 in the run.
    """
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    rows = [_row(_LOAD, 4), _row(_JUMP_EQUAL, architecture, over_if_not=0, over_if=1), _fail(errno.ENOSYS)]
    if machine == "x86_64":
        rows += [_row(_LOAD, 0), _row(_JUMP_AT_LEAST, _X32, over_if_not=1), _fail(errno.ENOSYS)]

    def rule(call: _Call, body: list[bytes]) -> None:
        number = call.number(machine)
        if number is not None:
            rows.extend([_row(_LOAD, 0), _row(_JUMP_EQUAL, number, over_if_not=len(body)), *body])

    for call in _MISSING:
        rule(call, [_fail(errno.ENOSYS)])
    for call in _REFUSED:
        rule(call, [_fail(errno.EPERM)])
    for call in _OWNERS if root else ():
        rule(call, [_fail(0)])
    for call in _NAMESPACES:
        rule(call, [_argument(0), *_fail_with_bits(_NEWUSER)])
    for call, mode in _MODES:
        rule(call, [_argument(mode), *_fail_with_bits(_SETUID)])
    for call, flags, mode in _OPENS:
        rule(call, [_argument(flags), _row(_JUMP_BITS, _CREATES, over_if_not=3), _argument(mode), *_fail_with_bits(_SETUID)])
    for call in _OF_A_PROCESS:
        rule(call, [_argument(0), _row(_JUMP_EQUAL, 1, over_if_not=1), _fail(errno.EPERM)])
    inputs = [part for value in _TERMINAL_INPUT for part in (_row(_JUMP_EQUAL, value, over_if_not=1), _fail(errno.EPERM))]
    rule(_IOCTL, [_argument(1), *inputs])
    families = [_row(_JUMP_EQUAL, family, over_if=len(_FAMILIES) - index) for index, family in enumerate(_FAMILIES)]
    rule(_SOCKET, [_argument(0), *families, _fail(errno.EAFNOSUPPORT)])
    return b"".join([*rows, _row(_RETURN, _ALLOW)])


def _fail_with_bits(bits: int) -> list[bytes]:
    return [_row(_JUMP_BITS, bits, over_if_not=1), _fail(errno.EPERM)]


def _argument(number: int) -> bytes:
    """Load the lower 32 bits of an argument (`struct seccomp_data`, little-endian)."""
    return _row(_LOAD, 16 + 8 * number)


def _fail(number: int) -> bytes:
    return _row(_RETURN, _ERROR | number)


def _row(code: int, value: int, *, over_if: int = 0, over_if_not: int = 0) -> bytes:
    """One instruction. A jump skips `over_if` rows if its condition is true, else `over_if_not` rows."""
    return struct.pack("=HBBI", code, over_if, over_if_not, value)
