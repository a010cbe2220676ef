"""Find the shared libraries that ELF files need, as the dynamic loader does (ld.so(8)), without running it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.system import elf, ldcache
from repro_env.environment.system.elf import Elf
from repro_env.environment.system.tree import list_names
from repro_env.schema.errors import LockError

Reader = Callable[[str], Elf | None]
"""`elf.read`, or one that keeps what it read."""
_TRIPLETS = {elf.X86_64: "x86_64-linux-gnu", elf.AARCH64: "aarch64-linux-gnu"}


class Closure(msgspec.Struct, frozen=True):
    """The files that the loader would open."""

    libraries: tuple[str, ...]
    """Absolute paths as the loader spells them (symlinks unresolved), sorted, without the files that the search began with.

    The dynamic loaders that programs request are included.
    """
    missing: Mapping[str, str]
    """Name of a library that is not on this machine -> the first file that needs it; sorted."""


class Loader:
    """The search rules of this machine: the loader's cache, its default directories and `LD_LIBRARY_PATH`."""

    def __init__(self, cache: Iterable[ldcache.Library], path: Sequence[str] = (), read: Reader = elf.read) -> None:
        """`path`: the absolute directories of `LD_LIBRARY_PATH`, in order."""
        self._read_elf = read
        self._path = tuple(path)
        self._cache: dict[tuple[str, int], list[ldcache.Library]] = {}
        for library in cache:
            self._cache.setdefault((library.name, library.flags), []).append(library)
        self._read: dict[str, Elf | None] = {}
        self._variants: dict[str, list[str]] = {}
        self.damaged: set[str] = set()
        """Files that cannot be read as ELF: one line each."""

    def facts(self, path: str) -> Elf | None:
        """The facts of one file; None if it is missing or is not a valid ELF file (invalid files are added to `damaged`)."""
        if path not in self._read:
            self._read[path] = None
            try:
                self._read[path] = self._read_elf(path)
            except LockError as error:
                self.damaged.add(str(error))
            except PermissionError:
                self.damaged.add(f"{path}: this file cannot be read by the current user")
            except OSError:
                pass
        return self._read[path]

    def find(self, name: str, path: str, parents: tuple[str, ...] = ()) -> list[str]:
        """The paths of library `name`, which the file `path` needs; variants for newer CPUs (hwcaps) come last.

        `parents`: the files that loaded `path`, nearest first.
        """
        facts = self.facts(path)
        if facts is None:
            return []
        if "/" in name:
            return [name] if name.startswith("/") and self._fits(name, facts) else []
        for directory in self._before_cache(facts, path, parents):
            if paths := self._in(directory, name, facts):
                return paths
        cached = self._cache.get((name, ldcache.FLAGS.get(facts.machine, -1)), [])
        plain = [library.path for library in cached if not library.hwcaps and self._fits(library.path, facts)][:1]
        variants = [library.path for library in cached if library.hwcaps and self._fits(library.path, facts)]
        if plain or variants:
            return plain + variants
        for directory in _defaults(facts):
            if paths := self._in(directory, name, facts):
                return paths
        return []

    def search(self, name: str, program: str) -> list[str]:
        """The library that `ctypes.util.find_library` returns for a name such as `gmp`: the first match for the program's ABI."""
        facts = self.facts(program)
        flags = ldcache.FLAGS.get(facts.machine) if facts else None
        prefix = f"lib{name}."
        for (listed, kind), libraries in self._cache.items():
            if kind == flags and listed.startswith(prefix) and len(listed) > len(prefix) and " " not in listed:
                return [libraries[0].path]
        return []

    def resolve(self, roots: Iterable[str], program: str = "", loaded: Iterable[str] = ()) -> Closure:
        """Every library that the files `roots` (absolute paths) need. `program` is the executable that loads them.

        `loaded`: names of libraries that the process loads in another way. They are never missing.
        """
        loaded = set(loaded)
        libraries: set[str] = set()
        missing: dict[str, str] = {}
        pending: list[tuple[str, tuple[str, ...]]] = [(path, (program,) if program else ()) for path in roots]
        pending.reverse()
        visited: set[str] = set()
        while pending:
            path, parents = pending.pop()
            if path in visited:
                continue
            visited.add(path)
            facts = self.facts(path)
            if facts is None:
                continue
            if facts.interpreter:
                libraries.add(facts.interpreter)
            for name in facts.needed:
                paths = self.find(name, path, parents)
                libraries.update(paths)
                pending += [(library, (path, *parents)[:16]) for library in paths]
                if not paths and name not in loaded:
                    missing[name] = min(path, missing.get(name, path))
        names = {path.rpartition("/")[2] for path in libraries}
        return Closure(tuple(sorted(libraries)), {name: missing[name] for name in sorted(missing.keys() - names)})

    def _before_cache(self, facts: Elf, path: str, parents: tuple[str, ...]) -> Iterator[str]:
        """The directories searched before the cache: RPATH of the file and its loaders, LD_LIBRARY_PATH, RUNPATH.

        A file with a RUNPATH has no RPATH.
        """
        if not facts.runpath:
            for file in (path, *parents):
                loader = self.facts(file)
                if loader is not None and not loader.runpath:
                    yield from _expand(loader.rpath, file)
        yield from self._path
        yield from _expand(facts.runpath, path)

    def _in(self, directory: str, name: str, dependent: Elf) -> list[str]:
        """The library in one directory, and its variants for newer CPUs below it."""
        if directory not in self._variants:
            self._variants[directory] = list_names(f"{directory}/glibc-hwcaps")
        paths = [f"{directory}/{name}", *(f"{directory}/glibc-hwcaps/{inner}/{name}" for inner in self._variants[directory])]
        return [path for path in paths if self._fits(path, dependent)]

    def _fits(self, path: str, dependent: Elf) -> bool:
        facts = self.facts(path)
        return facts is not None and facts.machine == dependent.machine


def host(environ: Mapping[str, str], read: Reader = elf.read) -> Loader:
    """The loader of this machine, for a process with these variables."""
    return Loader(host_cache(), library_path(environ)[0], read)


def host_cache() -> tuple[ldcache.Library, ...]:
    """The lines of this machine's loader cache; empty if there is none."""
    try:
        return ldcache.read(Path("/etc/ld.so.cache").read_bytes())
    except FileNotFoundError:
        return ()


def library_path(environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the absolute directories of LD_LIBRARY_PATH without `..` and trailing slashes, a line for each entry that is ignored)."""
    directories, ignored = [], []
    for entry in re.split("[:;]", environ.get("LD_LIBRARY_PATH", "")) if environ.get("LD_LIBRARY_PATH") else ():
        if not entry.isprintable() or "$" in entry or not entry.startswith("/"):
            ignored.append(
                f"LD_LIBRARY_PATH has {entry!r}, whose meaning depends on the program or the working directory: ignored"
            )
        else:
            directories.append(os.path.realpath(entry) if ".." in entry else entry.rstrip("/") or "/")
    return tuple(dict.fromkeys(directories)), tuple(dict.fromkeys(ignored))


def _expand(directories: Iterable[str], path: str) -> Iterator[str]:
    """Fill in `$ORIGIN`. Relative directories are skipped: their meaning depends on the working directory."""
    origin = path.rpartition("/")[0]
    for directory in directories:
        directory = directory.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        if directory.startswith("/") and "$" not in directory:
            yield _normalize(directory)


@functools.cache
def _normalize(directory: str) -> str:
    """Remove `..`, so that libraries that refer to each other by `$ORIGIN/..` do not produce ever longer paths."""
    return os.path.realpath(directory) if ".." in directory else directory.rstrip("/")


def _defaults(facts: Elf) -> tuple[str, ...]:
    triplet = _TRIPLETS.get(facts.machine, "")
    own = (f"/lib/{triplet}", f"/usr/lib/{triplet}") if triplet else ()
    return (*own, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
