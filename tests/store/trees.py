"""Small trees as members, and trees on disk as plain data."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from repro_env.oci import layer
from repro_env.oci.entry import Entry, Member

BIG = bytes(range(256)) * 5000


def member(path: str, data: bytes = b"", *, executable: bool = False) -> Member:
    return Entry(path, "file", executable, len(data)), ([data] if data else [])


def directory(path: str) -> Member:
    return Entry(path, "dir"), ()


def link(path: str, target: str) -> Member:
    return Entry(path, "link", target=target), ()


def gone(path: str) -> Member:
    return Entry(path, "gone"), ()


def small() -> list[Member]:
    """Return one member of each kind, in the order of a layer."""
    return [
        directory("opt"),
        directory("opt/env"),
        member("opt/env.txt", b"sorts between"),
        member("opt/env/big", BIG),
        directory("opt/env/bin"),
        member("opt/env/bin/tool", b"#!/bin/sh\n", executable=True),
        link("opt/env/dangling", "../../../../nowhere"),
        directory("opt/env/empty"),
        member("opt/env/empty.txt"),
        member("opt/env/\N{GREEK SMALL LETTER PI}", b"3.14"),
    ]


def diff_id(members: list[Member]) -> str:
    return layer.diff_id(members)


def shown(root: Path) -> dict[str, tuple[str, int, int, str]]:
    """Return path -> (kind, mode, mtime, content or target)."""
    found = {}
    for top, directories, names in os.walk(root):
        for name in [".", *directories, *names]:
            path = Path(top, name)
            facts = path.lstat()
            text = str(path.readlink()) if path.is_symlink() else path.read_bytes().hex() if stat.S_ISREG(facts.st_mode) else ""
            kind = stat.filemode(facts.st_mode)[0]
            found[str(path.relative_to(root))] = (kind, stat.S_IMODE(facts.st_mode), int(facts.st_mtime), text)
    return found
