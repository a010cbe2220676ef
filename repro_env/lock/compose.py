"""The live environment against the stack of pure wheel layers: what is the same, and what the overlay must hold.

The overlay is a difference, so nothing can be forgotten by kind: stray modules, `.pth` files, edited and
deleted files, changed modes, symlinks, activation scripts, `pyvenv.cfg`, a file that two distributions own:
each is there because the live tree shows it and the wheels do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.image import record, script, stack
from repro_env.image.entry import Entry, ordered
from repro_env.image.wheel import Installed
from repro_env.io.files import Found

_CACHES = ("nbi", "nbc")
"""Numba's caches: valid only for the times of the sources here, and Numba makes them again."""


class Composition(msgspec.Struct, frozen=True):
    overlay: tuple[Entry, ...]
    """Relative to the image's root, sorted, parents present; empty when the wheels say it all."""
    edited: tuple[str, ...]
    """`<path> (<distribution>: changed|missing)`, paths relative to the prefix, sorted."""
    altered: dict[str, frozenset[str]]
    """Key of a distribution -> paths of its canonical form that the live tree does not show: their bytes are in the wheel only."""
    unheld: tuple[str, ...]
    """Paths that are no file, folder or symlink."""


def compose(
    stacks: Sequence[Mapping[str, Installed]],
    found: Sequence[Found],
    hashes: Mapping[str, str],
    *,
    root: str,
    mine: Callable[[str], bool] = lambda key: True,  # noqa: ARG005
    held: Mapping[str, Entry],
    read: Callable[[str], bytes],
    starts: Callable[[str], bool],
) -> Composition:
    """Compare one place with what the image's layers show there.

    `stacks`: what the packages and wheels of all places become, the lowest layers first. `found` is the place without
    bytecode (paths relative to its prefix), `hashes` the sha256 of its files, `read` gives a script. `root`: where the
    image holds the prefix. `mine` says of a key whether it is of this place: two may have one prefix, and each is compared
    with its own. `held`: the entries of the layers below all these, by path from the image's root.
    `starts` says of a path whether it is the python that the scripts of this place are for.
    """
    live = {one.path: one for one in found}
    entries = {path: _entry(one, hashes) for path, one in live.items() if one.kind in ("file", "link")}
    installed = {key: one for stacked in stacks for key, one in stacked.items() if one.root == root and mine(key)}
    rewritten = _rewritten(installed)
    own = frozenset().union(*rewritten.values())
    composed = stack.composed(stacks, root)

    def shows(path: str, entry: Entry, owner: str) -> bool:
        if path in rewritten[owner]:
            return True
        if entry.kind == "dir":
            return path in live and live[path].kind == "dir"
        there = entries.get(path)
        if there is None or there.kind != entry.kind:
            return False
        if there.kind == "link":
            return there.target == entry.target
        if there.executable != entry.executable:
            return False
        if there.sha256 == entry.sha256:
            return True
        point, body = installed[owner].points.get(path), installed[owner].bodies.get(path)
        if point is not None:
            return script.means(read(path), point, starts)
        return body is not None and script.same_body(read(path), body, starts)

    altered = {
        name: frozenset(entry.path for entry in one.entries if not shows(entry.path, entry, name))
        for name, one in installed.items()
    }
    overlay: dict[str, Entry] = {}
    edited = []
    for path, (_, owner) in composed.items():
        if owner not in installed or path not in altered[owner]:
            continue
        edited.append(f"{path} ({_name(owner)}: {'changed' if path in live else 'missing'})")
        if path not in live and not _under_link(path, entries):
            gone = _topmost_missing(path, lambda folder: folder in live or f"{root}/{folder}" in held)
            overlay[gone] = Entry(gone, "gone")
    for path, entry in entries.items():
        if path in own:
            continue
        known = composed.get(path)
        if known is not None and known[1] not in installed:
            continue  # of another place, which lists it too
        if known is None and held.get(f"{root}/{path}") == stack.below(entry, root):
            continue
        if known is None or path in altered[known[1]]:
            overlay[path] = entry
    parents = {path.rpartition("/")[0] for path in (*live, *composed)}
    parents |= {path for path, (entry, _) in composed.items() if entry.kind == "dir"}
    for path, one in live.items():
        if one.kind == "dir" and path not in parents and f"{root}/{path}" not in held:
            overlay[path] = Entry(path, "dir")
    return Composition(
        overlay=tuple(ordered(stack.below(entry, root) for entry in overlay.values())),
        edited=tuple(sorted(edited)),
        altered=altered,
        unheld=tuple(sorted(path for path, one in live.items() if one.kind == "other")),
    )


class Bytecode:
    """Decide what a walk of `root` skips: bytecode whose source exists is not identity (design, section 5).

    Everything else in a `__pycache__` is a file like any other: data that a package keeps there, a module without source.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, frozenset[str]] = {}
        """Folder -> the names in it."""

    def __call__(self, path: str, is_dir: bool) -> bool:
        folder, _, name = path.rpartition("/")
        if is_dir:
            return name == "__pycache__" and all(self._is_bytecode(folder, inner) for inner in self._in(path))
        parent, _, last = folder.rpartition("/")
        return last == "__pycache__" and self._is_bytecode(parent, name)

    def _is_bytecode(self, folder: str, name: str) -> bool:
        """Whether a name in the `__pycache__` of a folder is bytecode of an existing source."""
        parts = name.split(".")
        if parts[-1] in _CACHES:
            return True
        if parts[-1].isdigit():
            parts.pop()  # what a killed Python left behind: module.cpython-311.pyc.140234
        if parts[-1] != "pyc":
            return False
        sources = self._in(folder)
        return any(".".join(parts[:end]) + ".py" in sources for end in range(1, len(parts)))

    def _in(self, folder: str) -> frozenset[str]:
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(self._root / folder))  # noqa: PTH208
            except OSError:
                self._names[folder] = frozenset()
        return self._names[folder]


def _entry(one: Found, hashes: Mapping[str, str]) -> Entry:
    if one.kind == "link":
        return Entry(one.path, "link", target=one.target)
    return Entry(one.path, "file", one.executable, one.size, hashes[one.path])


def _rewritten(installed: Mapping[str, Installed]) -> dict[str, frozenset[str]]:
    """What installers write for themselves, by the package or distribution: never compared with what it brings."""
    return {key: frozenset(_own(key, one)) for key, one in installed.items()}


def _own(key: str, one: Installed) -> Iterator[str]:
    for entry in one.entries:
        folder = entry.path.rpartition("/")[0]
        if key.startswith("conda/"):
            # Its `.dist-info` is part of the package, RECORD and all.
            if folder == "conda-meta" and entry.path in one.literals:
                yield entry.path
        elif _is_record(entry.path):
            yield from (f"{folder}/{name}" for name in record.REWRITTEN)


def _name(key: str) -> str:
    """Of a key of a wheel or conda package (`Wheel.key`), for people."""
    return key.removeprefix("conda/").partition("@")[0]


def _is_record(path: str) -> bool:
    return path.endswith(".dist-info/RECORD")


def _under_link(path: str, entries: Mapping[str, Entry]) -> bool:
    """Whether a parent is a symlink or file in the live tree: putting that there hides the path already."""
    parts = path.split("/")
    return any("/".join(parts[:depth]) in entries for depth in range(1, len(parts)))


def _topmost_missing(path: str, there: Callable[[str], bool]) -> str:
    while (parent := path.rpartition("/")[0]) and not there(parent):
        path = parent
    return path
