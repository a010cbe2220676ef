"""Shared libraries of this process. The hooks of a run read it by itself: it needs no file beside it."""

from __future__ import annotations

import os


def mapped() -> list[str]:
    """Shared libraries that are mapped into this process."""
    paths = set()
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.rstrip(b"\n").split(None, 5)[5:]
            if path and path[0].startswith(b"/") and b".so" in os.path.basename(path[0]) and os.path.exists(path[0]):
                paths.add(os.fsdecode(path[0]))
    return sorted(paths)
