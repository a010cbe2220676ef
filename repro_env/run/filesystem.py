"""Which file system a path lies on, as the kernel lists its mounts (proc(5), mountinfo)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

NETWORK = frozenset(
    {"nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "cifs", "smb3", "afs", "9p", "glusterfs", "orangefs", "virtiofs", "fuse"}
)
"""File systems that more than one machine may write; Linux refuses them as the upper side of an overlay, or should."""
MEMORY = frozenset({"tmpfs", "ramfs"})


class Mounted(msgspec.Struct, frozen=True):
    """One line of mountinfo."""

    point: str
    kind: str
    """Its type, e.g. `ext4`; the part before a dot alone (`fuse.sshfs` is `fuse`)."""
    options: tuple[str, ...]
    """Of this mount, not of the file system."""


def parse(text: str) -> list[Mounted]:
    """Lines of mountinfo, in order: of two mounts on one point the later one is on top."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        found.append(Mounted(_plain(fields[4]), after.split(" ", 1)[0].partition(".")[0], tuple(fields[5].split(","))))
    return found


def _plain(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def mounts() -> list[Mounted]:
    """The mounts this process sees."""
    return parse(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def kind(path: Path, table: list[Mounted] | None = None) -> str:
    """The type of the file system that `path` lies on, or would lie on; `unknown` where the kernel lists none."""
    real = os.path.realpath(path)
    best = ""
    answer = "unknown"
    for one in mounts() if table is None else table:
        if len(one.point) >= len(best) and (real + "/").startswith(one.point.rstrip("/") + "/"):
            best, answer = one.point, one.kind
    return answer
