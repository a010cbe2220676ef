"""Install files of a distribution by hand."""

from __future__ import annotations

import hashlib

from repro_env.guest.wheelrule import EntryPoint
from repro_env.oci.entry import Entry
from repro_env.oci.wheel import Installed


def installed(
    files: dict[str, str], *, executable: tuple[str, ...] = (), points: dict[str, EntryPoint] | None = None
) -> Installed:
    entries = [
        Entry(path, "file", path in executable, len(text), hashlib.sha256(text.encode()).hexdigest())
        for path, text in files.items()
    ]
    entries += [Entry(path, "file", True, 1, "0" * 64) for path in points or {}]
    return Installed(
        "opt/env",
        tuple(sorted(entries, key=lambda entry: entry.key)),
        {path: path for path in files},
        {},
        points or {},
        {},
    )
