"""Choose the sibling directories of a source (`../data`, `../results`) that a live run sees: those that its code names.

The code is searched, never run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from repro_env.environment.source.exclusions import MANY, STORES, forbidden_reason, generated_reason, may_be_copied
from repro_env.io.files import Found, read_head, walk
from repro_env.schema.errors import CaptureError

_NAME = re.compile(r"\.\./[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_LARGEST = 2_000_000
"""Maximum bytes of a file; larger files are not searched."""
_PATH = re.compile(rb"(?:[\"'](?:\./)?|[\"'}]/(?=\.\./))((?:\.\./){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60})(?=[/\"'])")
"""The start of a possible path, at the start of a string or after one (`here + "/../data"`). Hidden names do not match."""
_JOINED = re.compile(rb"[\"']\.\.\\?[\"']\)?\s*[,/]\s*\\?[\"']([A-Za-z0-9_][A-Za-z0-9_.-]{0,60})")
"""`"..", "data"` and `Path("..") / "data"`: the name of a sibling of the working directory."""
_SETTINGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh")
"""Suffixes of files with unquoted paths, for example the configuration of Hydra."""
_VALUE = re.compile(
    rb"(?:^|[\s\"'=:,\[]|\}/)(?:\./)?((?:\.\./){1,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}|[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}(?=/))",
    re.MULTILINE,
)
"""The start of a possible path in such a file, also after a reference (`${root}/../data`)."""


def mentioned_paths(root: Path, found: Sequence[Found]) -> frozenset[str]:
    """Return the start of each path in the strings of a source's code and settings: `data` of `data/x.csv`, `../data` of `../data/x.csv`.

    Python files, notebooks and settings are searched. Files that cannot be read are skipped.
    """
    paths: set[bytes] = set()
    for entry in found:
        if entry.kind == "file" and entry.path.endswith((".py", ".ipynb", *_SETTINGS)) and entry.size <= _LARGEST:
            text = read_head(root / entry.path, _LARGEST)
            if entry.path.endswith(_SETTINGS):
                paths.update(_VALUE.findall(text))
            else:
                paths.update(_PATH.findall(text), (b"../" + name for name in _JOINED.findall(text)))
    return frozenset(path.decode() for path in paths)


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
