"""Compare the live environment with its wheel layers, and determine the overlay.

The overlay is computed as a difference, so no kind of file can be forgotten: stray modules, `.pth` files, edited and deleted
files, changed modes, symlinks, activation scripts, `pyvenv.cfg` and files that two distributions own are all in the live
tree, but not in the wheels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.guest.wheelrule import REWRITTEN
from repro_env.io.files import Found
from repro_env.oci import consolescript, wheellayers
from repro_env.oci.entry import Entry, entries_of, sort_with_parents
from repro_env.oci.wheel import Installed

_NUMBA_SUFFIXES = ("nbi", "nbc")
"""Numba's caches depend on the modification times of the sources here; Numba recreates them."""


class Composition(msgspec.Struct, frozen=True):
    overlay: tuple[Entry, ...]
    """Relative to the image's root, sorted, with parents; empty if the wheels contain everything."""
    edited: tuple[str, ...]
    """`<path> (<distribution>: changed|missing)`, paths relative to the prefix, sorted."""
    altered: dict[str, frozenset[str]]
    """Key of a distribution -> paths that differ in the live tree: their original bytes are only in the wheel."""
    unsupported: tuple[str, ...]
    """Paths that are not files, directories or symlinks, which no image can contain."""


def compose(
    stacks: Sequence[Mapping[str, Installed]],
    found: Sequence[Found],
    hashes: Mapping[str, str],
    *,
    root: str,
    owns: Callable[[str], bool] = lambda key: True,  # noqa: ARG005
    lower: Mapping[str, Entry],
    read: Callable[[str], bytes],
    is_own_python: Callable[[str], bool],
) -> Composition:
    """Compare a site directory with what the image's layers show there.

    `stacks`: what the packages and wheels of all sites become, lowest layers first. `found`: the site's paths without bytecode,
    relative to its prefix; `hashes`: the sha256 of its files; `read` returns the bytes of a script. `root`: the prefix in the
    image. `owns` tells whether a key belongs to this site: two sites may share a prefix, and each is compared with its own
    packages. `lower`: the entries of all lower layers, by path from the image's root. `is_own_python` tells whether a path is
    the python that this site's scripts start.
    """
    live = {file.path: file for file in found}
    entries = {entry.path: entry for entry in entries_of((file for file in found if file.kind in ("file", "link")), hashes)}
    installed = {key: package for layer in stacks for key, package in layer.items() if package.root == root and owns(key)}
    rewritten = {key: frozenset(_rewritten_paths(key, package)) for key, package in installed.items()}
    all_rewritten = frozenset().union(*rewritten.values())
    composed = wheellayers.compose(stacks, root)

    def shows(path: str, entry: Entry, owner: str) -> bool:
        if path in rewritten[owner]:
            return True
        if entry.kind == "dir":
            return path in live and live[path].kind == "dir"
        live_entry = entries.get(path)
        if live_entry is None or live_entry.kind != entry.kind:
            return False
        if live_entry.kind == "link":
            return live_entry.target == entry.target
        if live_entry.executable != entry.executable:
            return False
        if live_entry.sha256 == entry.sha256:
            return True
        point, body = installed[owner].points.get(path), installed[owner].bodies.get(path)
        if point is not None:
            return consolescript.is_stub_of(read(path), point, is_own_python)
        return body is not None and consolescript.has_same_body(read(path), body, is_own_python)

    altered = {
        name: frozenset(entry.path for entry in package.entries if not shows(entry.path, entry, name))
        for name, package in installed.items()
    }
    overlay: dict[str, Entry] = {}
    edited = []
    for path, (_, owner) in composed.items():
        if owner not in installed or path not in altered[owner]:
            continue
        edited.append(f"{path} ({_name(owner)}: {'changed' if path in live else 'missing'})")
        if path not in live and not _under_link(path, entries):
            topmost = _topmost_missing(path, lambda directory: directory in live or f"{root}/{directory}" in lower)
            overlay[topmost] = Entry(topmost, "gone")
    for path, entry in entries.items():
        if path in all_rewritten:
            continue
        composed_entry = composed.get(path)
        if composed_entry is not None and composed_entry[1] not in installed:
            continue  # belongs to another site, which lists it too
        if composed_entry is None and lower.get(f"{root}/{path}") == wheellayers.move_below(entry, root):
            continue
        if composed_entry is None or path in altered[composed_entry[1]]:
            overlay[path] = entry
    parents = {path.rpartition("/")[0] for path in (*live, *composed)}
    parents |= {path for path, (entry, _) in composed.items() if entry.kind == "dir"}
    for path, file in live.items():
        if file.kind == "dir" and path not in parents and f"{root}/{path}" not in lower:
            overlay[path] = Entry(path, "dir")
    return Composition(
        overlay=tuple(sort_with_parents(wheellayers.move_below(entry, root) for entry in overlay.values())),
        edited=tuple(sorted(edited)),
        altered=altered,
        unsupported=tuple(sorted(path for path, file in live.items() if file.kind == "other")),
    )


class Bytecode:
    """A `skip` for walks of `root` that excludes bytecode whose source exists: it is not part of the identity (design, section 5).

    Other files in a `__pycache__` are ordinary: data that a package stores there, or a module without source.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, frozenset[str]] = {}
        """Directory -> its file names."""

    def __call__(self, path: str, is_dir: bool) -> bool:
        directory, _, name = path.rpartition("/")
        if is_dir:
            return name == "__pycache__" and all(self._is_bytecode(directory, inner) for inner in self._in(path))
        parent, _, last = directory.rpartition("/")
        return last == "__pycache__" and self._is_bytecode(parent, name)

    def _is_bytecode(self, directory: str, name: str) -> bool:
        """Whether a file in the `__pycache__` of a directory is bytecode of an existing source file."""
        parts = name.split(".")
        if parts[-1] in _NUMBA_SUFFIXES:
            return True
        if parts[-1].isdigit():
            parts.pop()  # the temporary file of a killed Python: module.cpython-311.pyc.140234
        if parts[-1] != "pyc":
            return False
        sources = self._in(directory)
        return any(".".join(parts[:end]) + ".py" in sources for end in range(1, len(parts)))

    def _in(self, directory: str) -> frozenset[str]:
        if directory not in self._names:
            try:
                self._names[directory] = frozenset(os.listdir(self._root / directory))  # noqa: PTH208
            except OSError:
                self._names[directory] = frozenset()
        return self._names[directory]


def _rewritten_paths(key: str, package: Installed) -> Iterator[str]:
    """The files of a package or distribution that installers write themselves: they are not compared."""
    for entry in package.entries:
        directory = entry.path.rpartition("/")[0]
        if key.startswith("conda/"):
            # Its `.dist-info`, including RECORD, is part of the package.
            if directory == "conda-meta" and entry.path in package.literals:
                yield entry.path
        elif entry.path.endswith(".dist-info/RECORD"):
            yield from (f"{directory}/{name}" for name in REWRITTEN)


def _name(key: str) -> str:
    """The readable name in the key of a wheel or conda package (`Wheel.key`)."""
    return key.removeprefix("conda/").partition("@")[0]


def _under_link(path: str, entries: Mapping[str, Entry]) -> bool:
    """Whether a parent is a symlink or file in the live tree, which hides the path already."""
    parts = path.split("/")
    return any("/".join(parts[:depth]) in entries for depth in range(1, len(parts)))


def _topmost_missing(path: str, exists: Callable[[str], bool]) -> str:
    while (parent := path.rpartition("/")[0]) and not exists(parent):
        path = parent
    return path
