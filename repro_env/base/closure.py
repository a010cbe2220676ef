"""Which libraries a set of ELF files pulls in: the dynamic loader's own search (ld.so(8)), done without running it."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.base import elf, ldcache
from repro_env.base.elf import Elf
from repro_env.model.errors import LockError

_TRIPLETS = {elf.X86_64: "x86_64-linux-gnu", elf.AARCH64: "aarch64-linux-gnu", elf.I386: "i386-linux-gnu"}
_ENOUGH = 50_000
"""Files looked at, before something must be wrong."""


class Missing(msgspec.Struct, frozen=True, order=True):
    """A library that is asked for and lies nowhere."""

    name: str
    by: str
    """The first file that asks for it."""


class Closure(msgspec.Struct, frozen=True):
    """What the loader would open."""

    libraries: tuple[str, ...]
    """Absolute paths as the loader spells them (symlinks unresolved), sorted; the starting files not among them."""
    interpreters: tuple[str, ...]
    """Dynamic loaders that programs name, sorted."""
    missing: tuple[Missing, ...]
    damaged: tuple[str, ...]
    """Files that cannot be read as ELF: one line each, sorted."""
    found: Mapping[tuple[str, str], str]
    """(the file that asks, the name it asks for) -> the path that the loader takes for it."""


class Loader:
    """The machine's search rules: its cache, its built-in folders, and the folders of `LD_LIBRARY_PATH`."""

    def __init__(self, cache: Iterable[ldcache.Library], path: Sequence[str] = ()) -> None:
        """`path`: absolute folders of `LD_LIBRARY_PATH`, in order."""
        self._path = tuple(path)
        self._cache: dict[tuple[str, int], list[ldcache.Library]] = {}
        for library in cache:
            self._cache.setdefault((library.name, library.flags), []).append(library)
        self._read: dict[str, Elf | None] = {}
        self._variants: dict[str, list[str]] = {}
        self.damaged: set[str] = set()

    def facts(self, path: str) -> Elf | None:
        """Of one file; None when there is none, it is no ELF file, or it is a broken one (then it is in `damaged`)."""
        if path not in self._read:
            try:
                self._read[path] = elf.read(path)
            except LockError as error:
                self._read[path] = None
                self.damaged.add(str(error))
            except PermissionError:
                self._read[path] = None
                self.damaged.add(f"{path}: cannot be read by this user")
            except OSError:
                self._read[path] = None
        return self._read[path]

    def find(self, name: str, path: str, parents: tuple[str, ...]) -> list[str]:
        """Where `name`, needed by the file `path` that `parents` (nearest first) loaded, is found; hwcaps variants follow."""
        facts = self.facts(path)
        if facts is None:
            return []
        if "/" in name:
            return [name] if name.startswith("/") and self._fits(name, facts) else []
        for folder in self._first(facts, path, parents):
            if here := self._in(folder, name, facts):
                return here
        cached = self._cache.get((name, ldcache.FLAGS.get((facts.bits, facts.machine), -1)), [])
        if not facts.default_dirs:
            cached = [one for one in cached if not _in_default(one.path, facts)]
        plain = [one.path for one in cached if not one.hwcaps and self._fits(one.path, facts)][:1]
        variants = [one.path for one in cached if one.hwcaps and self._fits(one.path, facts)]
        if plain or variants:
            return plain + variants
        for folder in _defaults(facts) if facts.default_dirs else ():
            if here := self._in(folder, name, facts):
                return here
        return []

    def search(self, name: str, program: str) -> list[str]:
        """The library that `ctypes.util.find_library` returns for a name such as `gmp`: the first one of the program's ABI."""
        facts = self.facts(program)
        flags = ldcache.FLAGS.get((facts.bits, facts.machine)) if facts else None
        start = f"lib{name}."
        for (listed, kind), libraries in self._cache.items():
            if kind == flags and listed.startswith(start) and len(listed) > len(start) and " " not in listed:
                return [libraries[0].path]
        return []

    def _first(self, facts: Elf, path: str, parents: tuple[str, ...]) -> Iterator[str]:
        """RPATH of the file and of those that loaded it (each unless it has a RUNPATH itself), LD_LIBRARY_PATH, RUNPATH."""
        if not facts.runpath:
            for one in (path, *parents):
                others = self.facts(one)
                if others is not None and not others.runpath:
                    yield from _expanded(others.rpath, one)
        yield from self._path
        yield from _expanded(facts.runpath, path)

    def _in(self, folder: str, name: str, asker: Elf) -> list[str]:
        """The library in one folder, and its variants for better processors below it."""
        if folder not in self._variants:
            try:
                self._variants[folder] = sorted(os.listdir(f"{folder}/glibc-hwcaps"))  # noqa: PTH208
            except OSError:
                self._variants[folder] = []
        places = [f"{folder}/{name}", *(f"{folder}/glibc-hwcaps/{inner}/{name}" for inner in self._variants[folder])]
        return [place for place in places if self._fits(place, asker)]

    def _fits(self, path: str, asker: Elf) -> bool:
        found = self.facts(path)
        return found is not None and (found.bits, found.machine) == (asker.bits, asker.machine)


def close(starts: Iterable[str], loader: Loader, *, program: str = "", loaded: Mapping[str, str] | None = None) -> Closure:
    """Everything that `starts` (absolute paths) pull in. `program` is the executable they are loaded into.

    `loaded`: file names and sonames of libraries that the process has, or will have, from elsewhere -> path ("" when it
    needs no looking after): what the rules do not find is satisfied by them, as it is in the process.
    """
    loaded = loaded or {}
    found: set[str] = set()
    interpreters: set[str] = set()
    missing: dict[str, str] = {}
    answers: dict[tuple[str, str], str] = {}
    pending: list[tuple[str, tuple[str, ...]]] = [(path, (program,) if program else ()) for path in starts]
    pending.reverse()
    seen: set[str] = set()
    while pending:
        path, parents = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        if len(seen) > _ENOUGH:
            raise LockError(f"more than {_ENOUGH} libraries are needed", where=path, hint="this is a bug; please report it")
        facts = loader.facts(path)
        if facts is None:
            continue
        if facts.interpreter:
            interpreters.add(facts.interpreter)
        for name in facts.needed:
            places = loader.find(name, path, parents)
            if not places and name in loaded:
                places = [loaded[name]] if loaded[name] else []
            elif not places:
                missing[name] = min(path, missing.get(name, path))
            answers.update(((path, name), place) for place in places[:1])
            for place in places:
                found.add(place)
                pending.append((place, (path, *parents)[:16]))
    names = {path.rpartition("/")[2] for path in found}
    return Closure(
        libraries=tuple(sorted(found)),
        interpreters=tuple(sorted(interpreters)),
        missing=tuple(sorted(Missing(name, by) for name, by in missing.items() if name not in names)),
        damaged=tuple(sorted(loader.damaged)),
        found=answers,
    )


def host(path: Sequence[str] = ()) -> Loader:
    """This machine's loader; `path` as `Loader` takes it."""
    try:
        return Loader(ldcache.read(Path("/etc/ld.so.cache").read_bytes()), path)
    except FileNotFoundError:
        return Loader((), path)


def _expanded(folders: Iterable[str], path: str) -> Iterator[str]:
    """`$ORIGIN` and `$LIB` filled in; a relative folder would depend on where the program is started, so it is no place."""
    origin = path.rpartition("/")[0]
    for folder in folders:
        folder = folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin)
        libs = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu") if "LIB" in folder else ("",)
        for lib in libs:
            one = folder.replace("${LIB}", lib).replace("$LIB", lib)
            if one.startswith("/") and "$" not in one:
                yield _straight(one)


@functools.cache
def _straight(folder: str) -> str:
    """Without `..`, so that libraries that name each other by `$ORIGIN/..` do not get ever longer paths."""
    return os.path.realpath(folder) if ".." in folder else folder.rstrip("/")


def _defaults(facts: Elf) -> tuple[str, ...]:
    triplet = _TRIPLETS.get(facts.machine, "")
    wide = ("/lib64", "/usr/lib64") if facts.bits == 64 else ()
    return (*((f"/lib/{triplet}", f"/usr/lib/{triplet}") if triplet else ()), *wide, "/lib", "/usr/lib")


def _in_default(path: str, facts: Elf) -> bool:
    return path.rpartition("/")[0] in _defaults(facts)
