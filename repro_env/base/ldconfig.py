"""What ldconfig would list of a tree (ldconfig(8)), and what LD_LIBRARY_PATH finds before it, as lines of a loader's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from repro_env.base import closure, ldcache
from repro_env.base.ldcache import Library
from repro_env.base.tree import real

LIBRARY = re.compile(r"\A(?:lib.*\.so|ld-.*\.so)(?:\..*)?\Z")
"""File names that ldconfig looks at."""


def lines(
    paths: Iterable[str], links: Iterable[str], loader: closure.Loader, *, libpython: str | None, mapped: Iterable[str]
) -> Iterator[Library]:
    """The search folders in their order, then what was loaded from others.

    `paths`: files and links that are there, absolute and real; `links`: those of them that are links. `mapped`: paths that
    were loaded by no rule.
    """
    folders: dict[str, list[str]] = {}
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        if LIBRARY.match(name):
            folders.setdefault(folder, []).append(name)
    there = {f"{folder}/{name}" for folder, names in folders.items() for name in names}
    linked = set(links)
    if libpython:  # it travels with the interpreter, and may be found by nothing but this cache
        folder, _, name = real(libpython).rpartition("/")
        folders.setdefault(folder, []).append(name)
    seen: set[str] = set()
    for spelled in search():
        place = real(spelled)
        if place in seen:
            continue
        seen.add(place)
        inner = f"{place}/glibc-hwcaps/"
        for folder in sorted(name for name in folders if name == place or name.startswith(inner)):
            below = folder[len(place) :]
            yield from _listed(there, linked, loader, folder, spelled + below, folders[folder], below.rpartition("/")[2])
    for path in sorted(mapped):
        folder, _, name = path.rpartition("/")
        if folder not in seen:
            yield from _listed(there | {path}, linked, loader, folder, folder, [name], "")


def named(folder: str, loader: closure.Loader) -> Iterator[Library]:
    """A folder of LD_LIBRARY_PATH: each library by its file name, as the loader asks for it there."""
    for below, hwcaps in (("", ""), *((f"/glibc-hwcaps/{name}", name) for name in _names(f"{folder}/glibc-hwcaps"))):
        for name in _names(folder + below):
            path = f"{folder}{below}/{name}"
            facts = loader.facts(path) if LIBRARY.match(name) else None
            flags = ldcache.FLAGS.get((facts.bits, facts.machine)) if facts else None
            if flags is not None:
                yield Library(name, flags, path, hwcaps)


def search(root: Path = Path("/")) -> Iterator[str]:
    """Folders of ld.so.conf in their order, then the loader's built-in ones, as they are spelled below the root."""
    yield from _configured(root / "etc/ld.so.conf", root, 0)
    for folder in ("/lib", "/usr/lib"):
        yield folder
        # Built in where libc lies there (Fedora); on Debian the folder holds a name of the loader and nothing else.
        if (root / f"{folder[1:]}64/libc.so.6").exists():
            yield f"{folder}64"


def _listed(
    there: set[str], links: set[str], loader: closure.Loader, folder: str, spelled: str, names: Iterable[str], hwcaps: str
) -> Iterator[Library]:
    for name in names:
        facts = loader.facts(f"{folder}/{name}")
        flags = ldcache.FLAGS.get((facts.bits, facts.machine)) if facts else None
        if facts is None or flags is None:
            continue
        listed = facts.soname or name
        if f"{folder}/{name}" in links and name.endswith(".so") and listed.startswith(name):
            listed = name  # a link for the linker, which ldconfig lists too
        file = listed if f"{folder}/{listed}" in there else name
        yield Library(listed, flags, f"{spelled}/{file}", hwcaps)


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def _configured(file: Path, root: Path, depth: int) -> Iterator[str]:
    try:
        text = file.read_text(errors="surrogateescape")
    except OSError:
        return
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"] and depth < 8:
            for pattern in words[1:]:
                start = root if pattern.startswith("/") else file.parent
                for found in sorted(start.glob(pattern.lstrip("/"))):
                    yield from _configured(found, root, depth + 1)
        elif words and words[0].startswith("/"):
            yield words[0].rstrip("/")
