"""Compare the live environment with its wheel layers, and determine the overlay.

The overlay is computed as a difference, so no kind of file can be forgotten: stray modules, `.pth` files, edited and deleted
files, changed modes, symlinks, activation scripts, `pyvenv.cfg` and files that two distributions own are all in the live
tree, but not in the wheels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from repro_env.environment.python.sites import Site
from repro_env.guest.wheelrule import REWRITTEN
from repro_env.oci import consolescript, wheellayers
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.wheel import Installed
from repro_env.schema.errors import CaptureError
from repro_env.store.hashes import entries_of


class Composition(msgspec.Struct, frozen=True):
    overlay: tuple[Entry, ...]
    """Relative to the image's root, sorted, with parents; empty if the wheels contain everything."""
    edited: tuple[str, ...]
    """`<path> (<distribution>: changed|missing)`, paths relative to the prefix, sorted."""
    altered: dict[str, frozenset[str]]
    """Key of a distribution -> paths that differ in the live tree: their original bytes are only in the wheel."""


def compose(stacks: Sequence[Mapping[str, Installed]], site: Site, lower: Mapping[str, Entry]) -> Composition:
    """Compare a site directory with what the image's layers show there.

    `stacks`: what the packages and wheels of all sites become, lowest layers first. Two sites may share a prefix, and each is
    compared with its own packages. `lower`: the entries of all lower layers, by path from the image's root. Raises `CaptureError`
    for a path that no image can contain.
    """
    root = site.root
    live = {file.path: file for file in site.found}
    if unsupported := sorted(path for path, file in live.items() if file.kind == "other"):
        raise CaptureError(
            "this path is not a file, directory or symlink, so no image can contain it",
            where=str(site.prefix / unsupported[0]),
            hint="remove it from the environment and capture again",
        )
    entries = {
        entry.path: entry for entry in entries_of((file for file in site.found if file.kind in ("file", "link")), site.hashes)
    }
    installed = {key: package for layer in stacks for key, package in layer.items() if package.root == root and site.owns(key)}
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
            return consolescript.is_stub_of((site.prefix / path).read_bytes(), point, site.is_own_python)
        return body is not None and consolescript.has_same_body((site.prefix / path).read_bytes(), body, site.is_own_python)

    altered = {
        name: frozenset(
            entry.path
            for entry in package.entries
            if entries.get(entry.path) != entry and not shows(entry.path, entry, name)  # most are equal
        )
        for name, package in installed.items()
    }
    overlay: dict[str, Entry] = {}
    edited = []
    for path, (_, owner) in composed.items():
        if owner not in installed or path not in altered[owner]:
            continue
        name = owner.removeprefix("conda/").partition("@")[0]
        edited.append(f"{path} ({name}: {'changed' if path in live else 'missing'})")
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
    )


def _rewritten_paths(key: str, package: Installed) -> Iterator[str]:
    """The files of a package or distribution that installers write themselves: they are not compared."""
    for entry in package.entries:
        if key.startswith("conda/"):
            # Its `.dist-info`, including RECORD, is part of the package.
            if entry.path.rpartition("/")[0] == "conda-meta" and entry.path in package.literals:
                yield entry.path
        elif entry.path.endswith(".dist-info/RECORD"):
            yield from (f"{entry.path.rpartition('/')[0]}/{name}" for name in REWRITTEN)


def _under_link(path: str, entries: Mapping[str, Entry]) -> bool:
    """Whether a parent is a symlink or file in the live tree, which hides the path already."""
    parts = path.split("/")
    return any("/".join(parts[:depth]) in entries for depth in range(1, len(parts)))


def _topmost_missing(path: str, exists: Callable[[str], bool]) -> str:
    while (parent := path.rpartition("/")[0]) and not exists(parent):
        path = parent
    return path
