"""Directories beside a source (`../data`, `../results`), as a live run sees a copy of them: as git-ignored data, by names and sizes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro_env.capture.ignored import MANY, Places
from repro_env.capture.rules import STORES, forbidden, product
from repro_env.io.files import Found, walk
from repro_env.model.errors import CaptureError

_NAME = re.compile(r"\.\./[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def names(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that name something directly beside a directory, sorted: `../data`, and neither `../../data` nor `../.data`."""
    return tuple(sorted(path for path in set(paths) if _NAME.fullmatch(path)))


def look(root: Path, names: Iterable[str], *, apart: Sequence[Path], most: int) -> dict[str, list[Found]]:
    """What a run sees of directories beside `root`, by name: the smallest first, each complete, up to `most` bytes in all.

    Only version control, `.env`, caches, environments and captures in them are left out. No directory is seen that is a
    symlink, a project or an environment of its own, that holds a path of `apart`, `root` or HOME, or that has too many
    files, or some that are private by their name or cannot be read.
    """
    parent, never = root.parent, [os.path.realpath(path) for path in (root, Path("~").expanduser(), *apart)]
    listings = {}
    for name in names:
        path = parent / name[3:]
        held = any(f"{other}/".startswith(f"{os.path.realpath(path)}/") for other in never)
        if not held and not path.is_symlink() and path.is_dir() and not _is_project(path):
            found = _listed(path, most)
            if found is not None:
                listings[name] = found
    sizes = {name: sum(file.size for file in found) for name, found in listings.items()}
    chosen = {}
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        most -= sizes[name]
        if most < 0:
            break
        chosen[name] = listings[name]
    return chosen


def _is_project(path: Path) -> bool:
    marks = (*STORES, "repro/spec.json")
    return any(os.path.lexists(path / mark) for mark in marks) or product(str(path), is_dir=True) != ""


def _listed(path: Path, most: int) -> list[Found] | None:
    """None for a directory that cannot be seen complete. No more is looked at than `most` bytes or MANY paths."""
    rules = Places(str(path), frozenset())

    def skip(inner: str, is_dir: bool) -> bool:
        return forbidden(inner.rpartition("/")[2]) != "" or product(f"{path}/{inner}", is_dir=is_dir) != ""

    found = []
    try:
        for file in walk(path, skip=skip):
            found.append(file)
            most -= file.size
            usable = file.kind in ("dir", "link") or (file.kind == "file" and rules.may_be_copied(file.path))
            if most < 0 or len(found) > MANY or not usable:
                return None
    except (OSError, CaptureError):
        return None
    return found
