"""The memory limit and the out-of-memory kills of this process's control group."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def watch_oom_kills() -> Callable[[], bool]:
    """Returns a function that returns whether processes of this control group were killed since, because memory ran out."""
    before = _count_oom_kills()

    def has_increased() -> bool:
        after = _count_oom_kills()
        return before is not None and after is not None and after > before

    return has_increased


def _count_oom_kills() -> int | None:
    """How many processes of this control group were killed so far because memory ran out; None if that is not counted."""
    counts = (count_oom_kills(top / directory) for top, directory in directories("memory"))
    return next((count for count in counts if count is not None), None)


def count_oom_kills(group: Path) -> int | None:
    """How many processes of a control group were killed so far because memory ran out; None if that is not counted there."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            if match := re.search(r"^oom_kill (\d+)$", (group / name).read_text(), re.MULTILINE):
                return int(match[1])
    return None


def limit() -> int:
    """Bytes of memory that this control group and its parents allow; 0 if it is unlimited or unknown."""
    limits: list[int] = []
    for top, directory in directories("memory"):
        for above in (directory, *directory.parents):
            for name in ("memory.max", "memory.limit_in_bytes"):
                with contextlib.suppress(OSError, ValueError):  # `max`, or the root group, which has no limit
                    limits.append(int((top / above / name).read_text()))
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((limit for limit in limits if 0 < limit < physical), default=0)


def directories(controller: str) -> Iterator[tuple[Path, Path]]:
    """Yield the directories that may be this process's control group of a controller: a mount, and a path below it.

    There is a unified hierarchy, a hierarchy for the controller, or both (cgroups(7)).
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                tops = (controller,) if controllers else ("", "unified")
                yield from ((_ROOT / top, Path(path.lstrip("/"))) for top in tops)
