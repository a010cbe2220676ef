"""Whether an environment can stand on a base that was pulled: its interpreter, and every library that it loads from below."""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from repro_env.base import closure, interpreter, ldcache, libpath
from repro_env.base import needs as loading
from repro_env.base.host import Cut
from repro_env.base.needs import Needs
from repro_env.base.tree import Tree, real
from repro_env.image.entry import Entry
from repro_env.model.environment import Interpretation, SharedLibrary, Startup
from repro_env.model.errors import CaptureError
from repro_env.verify.image import resolved

if TYPE_CHECKING:
    from repro_env.base.pulled import Base

_VERSION = re.compile(rb"\0((?:GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OPENSSL|ZLIB|LIBFFI_BASE|NCURSES6?_TINFO)_[0-9][0-9.a-z_]*)(?=\0)")
"""Symbol versions of libraries that promise to stay compatible: an older one lacks the newer of them."""
_CACHE = "etc/ld.so.cache"
_FOLDERS = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64")
_TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_SHOWN = 3
_HINT = "name a base with the system that this environment was made for, or cut it from this machine: --base host"
_LOCALES = ("", "C", "POSIX", "C.UTF-8", "C.utf8")


def cut(
    facts: Interpretation,
    startup: Startup,
    base: Base,
    *,
    libraries: Iterable[Path],
    mapped: Iterable[Path],
    elsewhere: Sequence[str],
    environ: Mapping[str, str],
) -> Cut:
    """What `host.cut` gives, with the pulled tree as base. Parameters as there.

    Raises `CaptureError` for libraries that the base lacks, or has too old.
    """
    libraries, mapped = tuple(libraries), tuple(mapped)
    held = [*loading.elsewhere(facts), *elsewhere, *map(real, elsewhere)]
    seen = [*startup.mapped, *map(str, mapped)]
    needed = loading.needs(facts, seen, [str(path) for path in libraries], [], libpath.read(environ), held)
    starts = [*interpreter.binaries(facts.interpreter), *(str(path) for path in libraries), *map(str, mapped)]
    found = _found(needed, base, starts, facts.interpreter.executable)
    _check_versions(needed, found, base)
    unknown = [*base.tree.unknown, *needed.unknown]
    locale = next(iter(startup.locale.split()), "")
    if locale not in _LOCALES and not any(path.startswith("usr/lib/locale/") for path in base.entries):
        unknown.append(f"the locale {locale}: the base seems to hold none")
    entries = base.entries
    used = [SharedLibrary(path=path, owner="driver", sha256=None) for path in needed.drivers]
    used += [
        SharedLibrary(path=f"/{there}", owner=base.hint.reference, sha256=f"sha256:{entries[there].sha256}")
        for there in set(found.values())
    ]
    notes = (*base.tree.notes, *needed.notes)
    tree = Tree(
        entries=base.tree.entries,
        contents=base.tree.contents,
        packages=base.tree.packages,
        unknown=tuple(sorted(set(unknown))),
        notes=tuple(sorted(set(notes))),
    )
    return Cut(base=tree, unowned=None, carried=(), libraries=tuple(sorted(used, key=lambda one: one.path)))


def _found(needed: Needs, base: Base, starts: Sequence[str], program: str) -> dict[str, str]:
    """Each library as the loader spells it here -> where the base has it. `starts`: what may be what needs it, for people."""
    entries = base.entries
    found, missing = {}, []
    folders = _folders(base)
    for path in needed.spelled:
        name = path.rpartition("/")[2]
        places = [path[1:], *(f"{folder}/{name}" for folder in folders)]
        there = next((at for place in places if (at := resolved(entries, place)) and entries[at].kind == "file"), None)
        if there is None:
            missing.append(path)
        else:
            found[path] = there
    if missing:
        said = "; ".join(_asking(missing, needed, starts, program)) or _listed(missing)
        raise CaptureError(f"lacks what the environment loads: {said}", where=f"--base {base.hint.reference}", hint=_HINT)
    return found


def _asking(missing: Sequence[str], needed: Needs, starts: Sequence[str], program: str) -> list[str]:
    """For the first of those that lack something: which libraries."""
    lines: list[str] = []
    left = set(missing)
    for start in dict.fromkeys(starts):
        closed = closure.close([start], needed.loader, program=program, loaded=needed.loaded)
        if gone := sorted(left.intersection(closed.libraries)):
            lines.append(f"{_listed(gone)}, needed by {start}")
            left -= set(gone)
        if len(lines) == _SHOWN or not left:
            break
    return lines


def _listed(paths: Sequence[str]) -> str:
    names = sorted({path.rpartition("/")[2] for path in paths})
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _folders(base: Base) -> list[str]:
    """Where the base's loader looks: what its cache names, and its built-in folders."""
    triplet = _TRIPLETS[base.hint.platform.architecture]
    found = [f"{folder}/{triplet}" for folder in ("lib", "usr/lib", "usr/local/lib")] + list(_FOLDERS)
    entry = base.entries.get(_CACHE)
    if entry is not None and entry.kind == "file":
        data = b"".join(base.tree.contents.chunks(entry))
        found += [library.path.rpartition("/")[0].lstrip("/") for library in ldcache.read(data)]
    return list(dict.fromkeys(found))


def _check_versions(needed: Needs, found: Mapping[str, str], base: Base) -> None:
    """A library of the base may be older than this machine's: what is loaded upon it may not ask for what it lacks."""
    lacking: dict[bytes, str] = {}
    # What a library of the base asks for is somewhere in the base, or it would be broken by itself.
    has = frozenset[bytes]().union(*(_versions(str(base.root / there)) for there in found.values()))
    for here in sorted(found):
        for version in _versions(here) - has:
            lacking[version] = here.rpartition("/")[2]
    if not lacking:
        return
    for path in needed.starts:
        for version in sorted(_versions(path) & lacking.keys()):
            raise CaptureError(
                f"is too old: {path} needs {version.decode()}, which {lacking[version]} has here and nothing in the base",
                where=f"--base {base.hint.reference}",
                hint=_HINT,
            )


@functools.lru_cache(maxsize=4096)
def _versions(path: str) -> frozenset[bytes]:
    """Symbol versions that a file defines or asks for."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
            return frozenset(match[1] for match in _VERSION.finditer(data))
    except (OSError, ValueError):
        return frozenset()


def check_interpreter(base: Base, captured: Tree, facts: Interpretation) -> None:
    """The base has nothing at the interpreter's paths, or the very same files. Raises `CaptureError` that says what differs."""
    python = facts.interpreter
    entries = base.entries
    changed = [entry.path for entry in captured.entries if entry.kind != "dir" and _differs(entry, entries)]
    stdlib = [real(folder).lstrip("/") for folder in dict.fromkeys((python.stdlib, python.platstdlib))]
    mine = {entry.path for entry in captured.entries}
    more = [path for path in _files(entries, stdlib) if path not in mine]
    if not changed and not more:
        return
    parts = []
    if changed:
        parts.append(f"{len(changed):,} files differ, the first {_named(changed)}")
    if more:
        parts.append(f"{len(more):,} are in its standard library alone, the first {_named(more)}")
    raise CaptureError(
        f"has another interpreter where the captured one is ({python.executable}, {python.version}): {'; '.join(parts)}",
        where=f"--base {base.hint.reference}",
        hint="name the image that the environment was made in, or one without a Python there",
    )


def _differs(entry: Entry, entries: Mapping[str, Entry]) -> bool:
    there = entries.get(entry.path)
    if there is not None:
        same = (there.kind, there.sha256, there.target) == (entry.kind, entry.sha256, entry.target)
        return not same or there.executable != entry.executable
    folder = entry.path
    while folder := folder.rpartition("/")[0]:
        above = entries.get(folder)
        if above is not None:
            return above.kind != "dir"  # a layer above would put a folder in the place of a link
    return False


def _files(entries: Mapping[str, Entry], folders: Sequence[str]) -> Iterator[str]:
    """Files of the base below a standard library that a capture of it would hold."""
    for path, entry in entries.items():
        folder = next((one for one in folders if path.startswith(one + "/")), None)
        if folder is None or entry.kind == "dir":
            continue
        parts = path[len(folder) + 1 :].split("/")
        if interpreter.left_out("/".join(parts), False):
            continue
        if not any(interpreter.left_out("/".join(parts[:depth]), True) for depth in range(1, len(parts))):
            yield path


def _named(paths: Sequence[str]) -> str:
    return ", ".join(f"/{path}" for path in paths[:_SHOWN])


def hidden(base: Base, places: Iterable[tuple[str, Sequence[str], Iterable[str]]]) -> list[Entry]:
    """Removals of what the base has in site folders and the environment does not.

    `places`: of each place where the image holds its prefix, its site folders and its paths, both relative to that.
    """
    gone: dict[str, Entry] = {}
    for root, sites, paths in places:
        there = {f"{root}/{path}" for path in paths}
        folders = {folder for path in there for folder in _above(path)}
        for path in base.entries:
            if path in there or path in folders or not any(path.startswith(f"{root}/{site}/") for site in sites):
                continue
            if path.rpartition("/")[0] in folders or path.rpartition("/")[0] in {f"{root}/{site}" for site in sites}:
                gone[path] = Entry(path, "gone")  # what is below goes with it
    return [gone[path] for path in sorted(gone)]


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path
