"""Starts a command for which the kernel refuses locks or hard links, as some network file systems do: `limitedfiles.py locks|links COMMAND`.

No NFS server can be had here. A seccomp filter answers with the errno of such a file system, for all directories.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from repro_env.sandbox import kernel

ERRORS = {"locks": errno.ENOLCK, "links": errno.EPERM}
CALLS: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {"locks": (73,), "links": (86, 265)},
    "aarch64": {"locks": (32,), "links": (37,)},
}
"""Numbers of flock(2); link(2) and linkat(2)."""
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
REFUSE, ALLOW = 0x00050000, 0x7FFF0000


def main(what: str, *command: str) -> None:
    rules = [(LOAD_NUMBER, 0, 0, 0)]
    for number in CALLS[os.uname().machine][what]:
        rules += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | ERRORS[what])]
    rules.append((RETURN, 0, 0, ALLOW))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.filter_calls(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
