"""What all attempts share: what is known of the caller, and the building blocks of attempts."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import platform
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

Call = Callable[[], Optional[str]]

with open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "probe_hints.json")) as _file:
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


def inherited() -> List[int]:
    """Open descriptors that are neither standard ones nor made by the probe."""
    return [fd for fd in HINTS["_own_descriptors"] if fd > 2]
