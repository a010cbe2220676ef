"""The layer above the base: files that no system package owns, and a loader's cache that finds their libraries.

Runs do not set `LD_LIBRARY_PATH`: this cache lists the libraries that it leads to before all others. The loader reads
RUNPATH after the variable but before the cache, so a few libraries can still be found elsewhere: these are named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from repro_env.environment.machine.frameworks import is_driver
from repro_env.environment.system import ldconfig
from repro_env.environment.system.ldcache import Library
from repro_env.environment.system.libraries import SystemLibraries
from repro_env.environment.system.tree import LiveTree, Tree, real, within
from repro_env.io.hashes import FileHashes
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.schema import redact
from repro_env.schema.environment import Carried

CACHE = "/etc/ld.so.cache"
_WHY = "belongs to no package of the system"


def ldconfig_lines(trees: Sequence[LiveTree], system_libraries: SystemLibraries, libpython: str | None) -> tuple[Library, ...]:
    """The lines that ldconfig would write for these trees together."""
    paths = {path for tree in trees for path in tree.paths()}
    links = {path for tree in trees for path in tree.links()}
    return tuple(
        ldconfig.lines(paths, links, system_libraries.loader, libpython=libpython, mapped=system_libraries.mapped_only & paths)
    )


def library_path_lines(
    tree: LiveTree, unpackaged: LiveTree, system_libraries: SystemLibraries
) -> tuple[list[Library], list[str]]:
    """(the lines of the cache that replace LD_LIBRARY_PATH, a line for each directory that is not captured completely).

    These are the libraries in the two trees, and those in directories of other layers, which a framework may open by name. The
    names of libraries in `unpackaged` are added to that tree.
    """
    default_directories = {real(directory) for directory in ldconfig.search_directories()}
    lines: list[Library] = []
    unknown: list[str] = []
    for directory in system_libraries.variables.directories:
        real_directory = real(directory)
        if real_directory in default_directories or not Path(real_directory).is_dir():
            continue
        # A run uses the driver of its own machine.
        libraries = [library for library in ldconfig.files_in(directory, system_libraries.loader) if not is_driver(library.name)]
        if within(directory, system_libraries.other_layers) or within(real_directory, system_libraries.other_layers):
            lines += libraries
            continue
        uncaptured = set()
        for library in libraries:
            real_path = real(library.path)
            if real_path in tree or real_path in unpackaged:
                lines.append(library)
                unpackaged.follow(library.path)
            else:
                uncaptured.add(real_path)
        if uncaptured:
            unknown.append(
                f"LD_LIBRARY_PATH names {directory}: {len(uncaptured)} of its libraries are not captured, because nothing captured "
                f"loads them; a program that opens one of them by name does not find it (to capture all: --with {directory})"
            )
    return lines, unknown


def merge(first: Sequence[Library], others: Sequence[Library]) -> tuple[Library, ...]:
    """`first` before `others`, without those variants of the latter that the loader would prefer to a library of `first`."""
    names = {(library.name, library.flags) for library in first}
    return (*first, *(library for library in others if not (library.hwcaps and (library.name, library.flags) in names)))


def build(unpackaged: LiveTree, base: Sequence[Entry], lower: bytes, upper: bytes, hashes: FileHashes) -> Tree | None:
    """The tree above a base with these entries, or None if it would be empty. `lower` and `upper` are the two caches."""
    if lower != upper:
        unpackaged.generate(CACHE, upper)
    entries, contents = unpackaged.finish(hashes)
    base_entries: Mapping[str, Entry] = {entry.path: entry for entry in base}
    own = [entry for entry in entries if base_entries.get(entry.path) != entry]
    return Tree(entries=tuple(sort_with_parents(own)), contents=contents) if own else None


def bundled(paths: Sequence[str], directories: Sequence[str], tree: Tree | None) -> tuple[Carried, ...]:
    """A description of each directory of `--with` and of each other file, with its size in bytes, sorted."""
    files = {f"/{entry.path}": entry.size for entry in (tree.entries if tree else ()) if entry.kind == "file"}
    sizes = {directory: sum(size for path, size in files.items() if within(path, (directory,))) for directory in directories}
    sizes |= {path: files[path] for path in paths if path in files and not within(path, directories)}
    descriptions = [Carried(name=redact.line(path), version="", why=_WHY, size=size) for path, size in sizes.items()]
    return tuple(sorted(descriptions, key=lambda item: item.name))
