"""The system call filter: it has the kernel's call numbers, and refuses exactly the calls that it should."""

from __future__ import annotations

import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.sandbox.embedded import seccomp
from tests.parts import need

TRIES = """
import ctypes, errno, fcntl, os, platform, socket, subprocess, threading
from repro_env.sandbox import kernel; from repro_env.sandbox.embedded import seccomp
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
kernel.filter_calls(seccomp.program(platform.machine(), root=True))
open("file", "w").close()
def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0: raise OSError(ctypes.get_errno(), name)
tries = {
    "a mode": lambda: os.chmod("file", 0o755),
    "set-group-ID": lambda: os.chmod("file", 0o2755),
    "set-user-ID": lambda: os.chmod("file", 0o4755),
    "another owner": lambda: os.chown("file", 12345, 12345),
    "a new file": lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY, 0o644)),
    "a new set-user-ID file": lambda: os.close(os.open("bad", os.O_CREAT | os.O_WRONLY, 0o4755)),
    "a set-user-ID node": lambda: os.mknod("node", 0o104755),
    "reading with any mode": lambda: call("open", b"file", os.O_RDONLY, 0o4755),
    "a thread": lambda: threading.Thread(target=int).start(),
    "a process": lambda: subprocess.run(["true"], check=True),
    "TCP": lambda: socket.socket().close(),
    "a vsock": lambda: socket.socket(40, socket.SOCK_STREAM),
    "a user namespace": lambda: kernel.unshare(kernel.CLONE_NEWUSER),
    "a mount": lambda: kernel.mount("a", "/b"),
    "typing": lambda: fcntl.ioctl(0, 0x5412, b"x"),
    "the first process's limits": lambda: call("prlimit", 1, 7, None, None),
    "own limits": lambda: call("prlimit", 0, 7, None, ctypes.create_string_buffer(16)),
}
for name, attempt in tries.items():
    try: attempt(); print(name, "works")
    except OSError as error: print(name, errno.errorcode[error.errno])
"""


def test_the_filter_refuses_only_dangerous_calls(tmp_path: Path) -> None:
    need(seccomp.program(platform.machine(), root=True), "x86-64 or 64-bit Arm")
    done = subprocess.run(
        [sys.executable, "-c", TRIES], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "a mode works",
        "set-group-ID works",
        "set-user-ID EPERM",
        "another owner works",
        "a new file works",
        "a new set-user-ID file EPERM",
        "a set-user-ID node EPERM",
        "reading with any mode works",
        "a thread works",
        "a process works",
        "TCP works",
        "a vsock EAFNOSUPPORT",
        "a user namespace EPERM",
        "a mount EPERM",
        "typing EPERM",
        "the first process's limits EPERM",
        "own limits works",
    ], done.stderr


HEADERS = {"x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), "aarch64": Path("/usr/include/asm-generic/unistd.h")}
"""64-bit Arm uses the generic numbers."""


def _calls() -> Iterator[seccomp._Call]:
    yield from (
        *seccomp._MISSING,
        *seccomp._REFUSED,
        *seccomp._NAMESPACES,
        *seccomp._OF_A_PROCESS,
        seccomp._SOCKET,
        seccomp._IOCTL,
    )
    yield from (row[0] for row in (*seccomp._MODES, *seccomp._OPENS))


@pytest.mark.parametrize("machine", HEADERS)
def test_call_numbers_are_those_in_the_kernel_headers(machine: str) -> None:
    header = HEADERS[machine]
    need(header.exists(), f"{header} (package linux-libc-dev on x86-64)")
    numbers = {
        name: int(number)
        for name, number in re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text(), re.MULTILINE)
    }
    compared = 0
    for call in _calls():
        if call.name in numbers or call.number(machine) is None:
            assert call.number(machine) == numbers.get(call.name), call.name
            compared += 1
    assert compared > 50


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_stays_in_the_filter(machine: str) -> None:
    program = seccomp.program(machine, root=True)
    assert program is not None
    rows = list(struct.iter_unpack("=HBBI", program))
    assert rows[-1][0] == 0x06
    assert all(index + 1 + max(over_if, over_if_not) < len(rows) for index, (_, over_if, over_if_not, _) in enumerate(rows[:-1]))


def test_an_unsupported_machine_has_no_filter() -> None:
    assert seccomp.program("riscv64", root=True) is None
