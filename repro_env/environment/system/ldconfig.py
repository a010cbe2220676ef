"""List libraries as ldconfig(8) does for a tree, and those that LD_LIBRARY_PATH finds before them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.environment.system import closure, ldcache
from repro_env.environment.system.ldcache import Library
from repro_env.environment.system.tree import list_names, real
from repro_env.io.files import read_text

LIBRARY = re.compile(r"\A(?:lib.*\.so|ld-.*\.so)(?:\..*)?\Z")
"""File names that ldconfig considers."""


def lines(
    paths: Iterable[str], links: Iterable[str], loader: closure.Loader, *, libpython: str | None, mapped: Iterable[str]
) -> Iterator[Library]:
    """The libraries of the search directories in their order, then those that were loaded from other directories.

    `paths`: files and links, absolute and real; `links`: those of them that are symlinks. `mapped`: paths that were loaded,
    but that no search rule finds.
    """
    directories: dict[str, list[str]] = {}
    for path in sorted(paths):
        real_directory, _, name = path.rpartition("/")
        if LIBRARY.match(name):
            directories.setdefault(real_directory, []).append(name)
    existing = {f"{real_directory}/{name}" for real_directory, names in directories.items() for name in names}
    symlinks = set(links)
    if libpython:  # part of the interpreter's layer, and perhaps found only through this cache
        real_directory, _, name = real(libpython).rpartition("/")
        directories.setdefault(real_directory, []).append(name)
    searched: set[str] = set()
    for directory in search_directories():
        resolved = real(directory)
        if resolved in searched:
            continue
        searched.add(resolved)
        hwcaps_prefix = f"{resolved}/glibc-hwcaps/"
        for real_directory in sorted(name for name in directories if name == resolved or name.startswith(hwcaps_prefix)):
            suffix = real_directory[len(resolved) :]
            yield from _libraries_in(
                existing,
                symlinks,
                loader,
                real_directory,
                directory + suffix,
                directories[real_directory],
                suffix.rpartition("/")[2],
            )
    for path in sorted(mapped):
        real_directory, _, name = path.rpartition("/")
        if real_directory not in searched:
            yield from _libraries_in(existing | {path}, symlinks, loader, real_directory, real_directory, [name], "")


def files_in(directory: str, loader: closure.Loader) -> Iterator[Library]:
    """The libraries in a directory of LD_LIBRARY_PATH by file name, which is how the loader looks them up there."""
    for suffix, hwcaps in (("", ""), *((f"/glibc-hwcaps/{name}", name) for name in list_names(f"{directory}/glibc-hwcaps"))):
        for name in list_names(directory + suffix):
            path = f"{directory}{suffix}/{name}"
            facts = loader.facts(path) if LIBRARY.match(name) else None
            flags = ldcache.FLAGS.get(facts.machine) if facts else None
            if flags is not None:
                yield Library(name, flags, path, hwcaps)


def search_directories(root: Path = Path("/")) -> Iterator[str]:
    """The directories of ld.so.conf in order, then the loader's default directories, as they are spelled below the root."""
    yield from _configured_directories(root / "etc/ld.so.conf", root, 0)
    for directory in ("/lib", "/usr/lib"):
        yield directory
        # A default directory where libc is in it (Fedora); on Debian it contains only a link to the loader.
        if (root / f"{directory[1:]}64/libc.so.6").exists():
            yield f"{directory}64"


def _libraries_in(
    existing: set[str], links: set[str], loader: closure.Loader, directory: str, spelled: str, names: Iterable[str], hwcaps: str
) -> Iterator[Library]:
    for name in names:
        facts = loader.facts(f"{directory}/{name}")
        flags = ldcache.FLAGS.get(facts.machine) if facts else None
        if facts is None or flags is None:
            continue
        listed = facts.soname or name
        if f"{directory}/{name}" in links and name.endswith(".so") and listed.startswith(name):
            listed = name  # a link for the compiler's linker, which ldconfig lists too
        file = listed if f"{directory}/{listed}" in existing else name
        yield Library(listed, flags, f"{spelled}/{file}", hwcaps)


def _configured_directories(file: Path, root: Path, depth: int) -> Iterator[str]:
    for line in read_text(file).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"] and depth < 8:
            for pattern in words[1:]:
                start = root if pattern.startswith("/") else file.parent
                for included in sorted(start.glob(pattern.lstrip("/"))):
                    yield from _configured_directories(included, root, depth + 1)
        elif words and words[0].startswith("/"):
            yield words[0].rstrip("/")
