"""Mount overlays of directories with arbitrary names.

The options name directories as `/proc/self/fd/N`, so no commas, colons or backslashes must be escaped, and many layers fit
in the page that mount(2) accepts for options.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from repro_env.sandbox import kernel


def mount(target: Path, lowers: Sequence[Path], *, upper: Path, work: Path) -> None:
    """Mount an overlay of `lowers` (lowest first) and `upper` at `target`. Raises `OSError`.

    Unmounting does not flush the upper layer if the kernel allows that (`volatile`, Linux 5.10). A user namespace requires
    `userxattr` (Linux 5.11).
    """
    with contextlib.ExitStack() as stack:

        def name(path: Path) -> str:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            return f"/proc/self/fd/{handle}"

        lowerdir = ":".join(name(path) for path in reversed(lowers))
        options = f"lowerdir={lowerdir},upperdir={name(upper)},workdir={name(work)}"
        # Without redirects, renaming a directory of a lower layer fails with EXDEV. Only overlay could read a redirect.
        options += ",userxattr" if in_user_namespace() else ",redirect_dir=off,index=off,metacopy=off"
        flags = kernel.MS_NODEV | kernel.MS_NOSUID
        try:
            kernel.mount("overlay", str(target), "overlay", flags, options + ",volatile")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            kernel.mount("overlay", str(target), "overlay", flags, options)


def in_user_namespace() -> bool:
    """Whether this process is in a user namespace other than the initial one (user_namespaces(7))."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
