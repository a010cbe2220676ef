"""Overlay mounts, with options that do not depend on how the folders are called.

Folders go in as `/proc/self/fd/N`: no comma, colon or backslash to escape, and sixty of them stay far below the
page that mount(2) takes options in.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from repro_env.run import kernel

XATTRS = ("trusted.overlay.", "user.overlay.")
"""What overlay keeps on the folders and files of its upper side, as root and in a user namespace."""


def mount(target: Path, lowers: Sequence[Path], *, upper: Path, work: Path, throw_away: bool) -> None:
    """Stack `lowers` (lowest first) under `upper` and show the result at `target`. Raises `OSError`.

    `throw_away`: the upper side is not worth an fsync (`volatile`, Linux 5.10). In a user namespace only
    `userxattr` will do (Linux 5.11).
    """
    with contextlib.ExitStack() as stack:

        def name(path: Path) -> str:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            return f"/proc/self/fd/{handle}"

        stacked = ":".join(name(path) for path in reversed(lowers))
        sides = f"lowerdir={stacked},upperdir={name(upper)},workdir={name(work)}"
        # Renaming a folder of a lower side would leave a redirect that only overlay understands: EXDEV instead.
        wanted = ",userxattr" if in_user_namespace() else ",redirect_dir=off,index=off,metacopy=off"
        for last, extra in ((False, ",volatile"), (True, "")) if throw_away else ((True, ""),):
            try:
                kernel.mount("overlay", str(target), "overlay", kernel.MS_NODEV | kernel.MS_NOSUID, sides + wanted + extra)
            except OSError as error:  # noqa: PERF203
                if last or error.errno != errno.EINVAL:
                    raise
            else:
                return


def in_user_namespace() -> bool:
    """Whether this process is in another user namespace than the first (user_namespaces(7))."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]
