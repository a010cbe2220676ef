"""The mounts of this process and the file system of a path (proc(5), mountinfo)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

_LOCAL_LOCKS = ("nolock", "local_lock=all", "local_lock=flock", "localflock")
"""Options of nfs(5) and, the last, of mount.lustre(8)."""


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo."""

    point: str
    kind: str
    """The type, such as `ext4`, without a subtype (`fuse.sshfs` is `fuse`)."""
    options: tuple[str, ...]
    """Options of the mount, not of the file system."""
    settings: tuple[str, ...]
    """Options of the file system."""


def parse(text: str) -> list[Mount]:
    """Parse mountinfo. The mounts are in order: a later one covers an earlier one at the same mount point."""
    table = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        kind, _, settings = after.split(" ")
        table.append(Mount(_unescape(fields[4]), kind.partition(".")[0], tuple(fields[5].split(",")), tuple(settings.split(","))))
    return table


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mounts() -> list[Mount]:
    """The mounts in this process's mount namespace."""
    return parse(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def of(path: Path) -> Mount | None:
    """The mount that contains `path`, which need not exist; None if no mount does."""
    real = os.path.realpath(path)
    result: Mount | None = None
    for mount in mounts():
        is_deeper = result is None or len(mount.point) >= len(result.point)
        if is_deeper and (real + "/").startswith(mount.point.rstrip("/") + "/"):
            result = mount
    return result


def local_locks(path: Path) -> str:
    """The mount option because of which locks of files in `path` hold only on this machine; empty if there is none."""
    mount = of(path)
    return next(filter(_LOCAL_LOCKS.__contains__, mount.settings), "") if mount is not None else ""
