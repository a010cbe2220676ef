"""Read what a command writes to a terminal."""

from __future__ import annotations

import os

TERMINAL = "import ctypes, fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def read_until(main: int, words: bytes) -> bytes:
    output = b""
    while words not in output:
        output += os.read(main, 4096)
    return output
