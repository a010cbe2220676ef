"""The mounts of this process and the file system of a path (proc(5), mountinfo)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo."""

    point: str
    kind: str
    """The type, such as `ext4`, without a subtype (`fuse.sshfs` is `fuse`)."""
    options: tuple[str, ...]
    """Options of the mount, not of the file system."""


def parse(text: str) -> list[Mount]:
    """Parse mountinfo. The mounts are in order: a later one covers an earlier one at the same mount point."""
    table = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        table.append(Mount(_unescape(fields[4]), after.split(" ", 1)[0].partition(".")[0], tuple(fields[5].split(","))))
    return table


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mounts() -> list[Mount]:
    """The mounts in this process's mount namespace."""
    return parse(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def kind(path: Path) -> str:
    """The type of the file system of `path`, which need not exist; `unknown` if no mount contains it."""
    real = os.path.realpath(path)
    deepest = ""
    result = "unknown"
    for mount in mounts():
        if len(mount.point) >= len(deepest) and (real + "/").startswith(mount.point.rstrip("/") + "/"):
            deepest, result = mount.point, mount.kind
    return result
