"""Choose the sibling directories of a source (`../data`, `../results`) that a live run sees, by names and sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro_env.environment.source.exclusions import MANY, STORES, forbidden_reason, generated_reason, may_be_copied
from repro_env.io.files import Found, walk
from repro_env.schema.errors import CaptureError

_NAME = re.compile(r"\.\./[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def names(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that name a sibling, sorted: `../data`, but neither `../../data` nor `../.data`."""
    return tuple(sorted(path for path in set(paths) if _NAME.fullmatch(path)))


def look(root: Path, names: Iterable[str], *, excluded: Sequence[Path], most: int) -> dict[str, list[Found]]:
    """Return the listings of the siblings of `root` that a run sees: the smallest first, each complete, up to `most` bytes.

    In each directory, only version control, `.env`, caches, environments and captures are left out. A directory is not used
    if it is a symlink, a project or an environment; if it contains `root`, HOME or a path of `excluded`; or if it has too many
    files, unreadable files, or files with private names.
    """
    parent, never = root.parent, [os.path.realpath(path) for path in (root, Path("~").expanduser(), *excluded)]
    listings = {}
    for name in names:
        path = parent / name[3:]
        contains_forbidden = any(f"{inner}/".startswith(f"{os.path.realpath(path)}/") for inner in never)
        if not contains_forbidden and not path.is_symlink() and path.is_dir() and not _is_project(path):
            listing = _list(path, most)
            if listing is not None:
                listings[name] = listing
    sizes = {name: sum(entry.size for entry in listing) for name, listing in listings.items()}
    chosen = {}
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        most -= sizes[name]
        if most < 0:
            break
        chosen[name] = listings[name]
    return chosen


def _is_project(path: Path) -> bool:
    marks = (*STORES, "repro/spec.json")
    return any(os.path.lexists(path / mark) for mark in marks) or generated_reason(str(path), is_dir=True) != ""


def _list(path: Path, most: int) -> list[Found] | None:
    """List a directory. Returns None if not all of it may be seen, or if it has more than `most` bytes or MANY paths."""

    def skip(inner: str, is_dir: bool) -> bool:
        return forbidden_reason(inner.rpartition("/")[2]) != "" or generated_reason(f"{path}/{inner}", is_dir=is_dir) != ""

    listing = []
    try:
        for entry in walk(path, skip=skip):
            listing.append(entry)
            most -= entry.size
            is_usable = entry.kind in ("dir", "link") or (
                entry.kind == "file" and may_be_copied(f"{path}/{entry.path}", entry.path)
            )
            if most < 0 or len(listing) > MANY or not is_usable:
                return None
    except (OSError, CaptureError):
        return None
    return listing
