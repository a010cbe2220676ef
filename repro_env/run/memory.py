"""Whether the kernel killed something of ours for lack of memory, as our own control group counts it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path


def kills(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """Processes of this control group that were killed for lack of memory so far; None where nobody counts them."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = path.lstrip("/")
        if not controllers:
            counted = [root / below / "memory.events", root / "unified" / below / "memory.events"]
        elif "memory" in controllers.split(","):
            counted = [root / "memory" / below / "memory.oom_control"]
        else:
            continue
        for file in counted:
            found = _count(file)
            if found is not None:
                return found
    return None


def _count(file: Path) -> int | None:
    try:
        match = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) if match else None


def limit(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory that this control group, or one above it, allows; 0 for no limit, or where nobody tells."""
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return 0
    found: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        folder = top / path.lstrip("/")
        while folder == top or top in folder.parents:
            with contextlib.suppress(OSError, ValueError):  # `max`, or the topmost group, which has none
                found.append(int((folder / name).read_text()))
            folder = folder.parent
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((value for value in found if 0 < value < most), default=0)
