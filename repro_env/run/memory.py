"""Whether the kernel killed something of ours for lack of memory, as our own control group counts it."""

from __future__ import annotations

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
