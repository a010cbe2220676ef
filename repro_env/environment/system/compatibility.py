"""Check whether an environment can use a base image: its interpreter, and every system library that it loads."""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.environment.system import interpretertree, ldcache, locales
from repro_env.environment.system import libraries as systemlibraries
from repro_env.environment.system.host import SystemFiles
from repro_env.environment.system.libraries import SystemLibraries
from repro_env.environment.system.tree import Tree, parent_directories, real
from repro_env.oci.entry import Entry
from repro_env.oci.imagetree import resolve
from repro_env.schema.environment import Interpretation, SharedLibrary, Startup
from repro_env.schema.errors import CaptureError
from repro_env.schema.messages import shorten

if TYPE_CHECKING:
    from repro_env.environment.system.baseimage import BaseImage

_VERSION = re.compile(rb"\0((?:GLIBC|GLIBCXX|CXXABI|GCC|GOMP|OPENSSL|ZLIB|LIBFFI_BASE|NCURSES6?_TINFO)_[0-9][0-9.a-z_]*)(?=\0)")
"""Symbol versions of libraries that stay backward compatible: an older library lacks the newer versions."""
_LOADER_CACHE = "etc/ld.so.cache"
_DIRECTORIES = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64")
_TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_MAX_NAMES = 3
_HINT = "choose an image of the system that this environment was made for, or make the base from this machine: --base host"


def system_files(
    facts: Interpretation,
    startup: Startup,
    base: BaseImage,
    *,
    libraries: Iterable[Path],
    mapped: Iterable[Path],
    other_layers: Sequence[str],
    environ: Mapping[str, str],
) -> SystemFiles:
    """The same as `host.system_files`, with the image's tree as the base; see there for the parameters.

    Raises `CaptureError` if the base lacks a library or has one that is too old.
    """
    libraries_needed = systemlibraries.find_system_libraries(
        facts, startup, mapped=mapped, libraries=libraries, environ=environ, other_layers=other_layers
    )
    base_paths = _find(libraries_needed, base)
    _check_versions(libraries_needed, base_paths, base)
    unknown = [*base.tree.unknown, *libraries_needed.unknown]
    locale = next(iter(startup.locale.split()), "")
    if locale not in locales.BUILT_IN and not any(path.startswith("usr/lib/locale/") for path in base.entries):
        unknown.append(f"the base does not seem to have the locale {locale}")
    entries = base.entries
    used_libraries = [SharedLibrary(path=path, owner="driver", sha256=None) for path in libraries_needed.drivers]
    used_libraries += [
        SharedLibrary(path=f"/{base_path}", owner=base.hint.reference, sha256=f"sha256:{entries[base_path].sha256}")
        for base_path in set(base_paths.values())
    ]
    notes = (*base.tree.notes, *libraries_needed.notes)
    tree = msgspec.structs.replace(base.tree, unknown=tuple(sorted(set(unknown))), notes=tuple(sorted(set(notes))))
    return SystemFiles(
        base=tree, unpackaged=None, bundled=(), libraries=tuple(sorted(used_libraries, key=lambda library: library.path))
    )


def _find(libraries_needed: SystemLibraries, base: BaseImage) -> dict[str, str]:
    """Map each library, as the loader spells it here, to its path in the base."""
    entries = base.entries
    base_paths, missing = {}, []
    directories = _directories(base)
    for path in libraries_needed.spelled:
        name = path.rpartition("/")[2]
        candidates = [path[1:], *(f"{directory}/{name}" for directory in directories)]
        base_path = next(
            (
                resolved_path
                for candidate in candidates
                if (resolved_path := resolve(entries, candidate)) and entries[resolved_path].kind == "file"
            ),
            None,
        )
        if base_path is None:
            missing.append(path)
        else:
            base_paths[path] = base_path
    if missing:
        details = "; ".join(_dependents(missing, libraries_needed)) or _names(missing)
        raise CaptureError(
            f"this image lacks libraries that the environment loads: {details}", where=f"--base {base.hint.reference}", hint=_HINT
        )
    return base_paths


def _dependents(missing: Sequence[str], libraries_needed: SystemLibraries) -> list[str]:
    """Lines that name missing libraries and a file that needs them, for the first few such files."""
    names_by_file: dict[str, list[str]] = {}
    for (file, _), library in libraries_needed.chosen.items():
        if library in missing:
            names_by_file.setdefault(file, []).append(library)
    return [f"{_names(paths)}, needed by {file}" for file, paths in sorted(names_by_file.items())[:_MAX_NAMES]]


def _names(paths: Sequence[str]) -> str:
    return shorten(sorted({path.rpartition("/")[2] for path in paths}), _MAX_NAMES)


def _directories(base: BaseImage) -> list[str]:
    """The directories that the base's loader searches: those in its cache and the default ones."""
    triplet = _TRIPLETS[base.hint.platform.architecture]
    directories = [f"{directory}/{triplet}" for directory in ("lib", "usr/lib", "usr/local/lib")] + list(_DIRECTORIES)
    entry = base.entries.get(_LOADER_CACHE)
    if entry is not None and entry.kind == "file":
        data = b"".join(base.tree.contents.chunks(entry))
        directories += [library.path.rpartition("/")[0].lstrip("/") for library in ldcache.read(data)]
    return list(dict.fromkeys(directories))


def _check_versions(libraries_needed: SystemLibraries, found: Mapping[str, str], base: BaseImage) -> None:
    """Raise `CaptureError` if a captured file needs a symbol version that the base's libraries do not have."""
    missing: dict[bytes, str] = {}
    # Includes the versions that the base's libraries need: the base must have them somewhere.
    available = frozenset[bytes]().union(*(_versions(str(base.root / base_path)) for base_path in found.values()))
    for path in sorted(found):
        for version in _versions(path) - available:
            missing[version] = path.rpartition("/")[2]
    if not missing:
        return
    for path in libraries_needed.roots:
        for version in sorted(_versions(path) & missing.keys()):
            raise CaptureError(
                f"this image is too old: {path} needs {version.decode()}, which {missing[version]} provides on this machine",
                where=f"--base {base.hint.reference}",
                hint=_HINT,
            )


@functools.lru_cache(maxsize=4096)
def _versions(path: str) -> frozenset[bytes]:
    """The symbol versions that a file defines or needs."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
            return frozenset(match[1] for match in _VERSION.finditer(data))
    except (OSError, ValueError):
        return frozenset()


def check_interpreter(base: BaseImage, captured: Tree, facts: Interpretation) -> None:
    """Raise `CaptureError` unless the base has the captured interpreter, or no files at its paths."""
    python = facts.interpreter
    entries = base.entries
    changed = [entry.path for entry in captured.entries if entry.kind != "dir" and _differs(entry, entries)]
    stdlib = [real(directory).lstrip("/") for directory in dict.fromkeys((python.stdlib, python.platstdlib))]
    captured_paths = {entry.path for entry in captured.entries}
    additional = [path for path in _files(entries, stdlib) if path not in captured_paths]
    if not changed and not additional:
        return
    parts = []
    if changed:
        parts.append(f"{len(changed):,} files differ (first: {_paths(changed)})")
    if additional:
        parts.append(f"{len(additional):,} files are only in its standard library (first: {_paths(additional)})")
    raise CaptureError(
        f"this image has another interpreter at {python.executable} than the captured one ({python.version}): {'; '.join(parts)}",
        where=f"--base {base.hint.reference}",
        hint="choose the image that the environment was made in, or one without a Python at this path",
    )


def _differs(entry: Entry, entries: Mapping[str, Entry]) -> bool:
    base_entry = entries.get(entry.path)
    if base_entry is not None:
        same = (base_entry.kind, base_entry.sha256, base_entry.target) == (entry.kind, entry.sha256, entry.target)
        return not same or base_entry.executable != entry.executable
    directory = entry.path
    while directory := directory.rpartition("/")[0]:
        parent = entries.get(directory)
        if parent is not None:
            return parent.kind != "dir"  # the interpreter's layer would replace the link by a directory
    return False


def _files(entries: Mapping[str, Entry], directories: Sequence[str]) -> Iterator[str]:
    """The files of the base in a standard library, without those that a capture excludes."""
    for path, entry in entries.items():
        directory = next((directory for directory in directories if path.startswith(directory + "/")), None)
        if directory is None or entry.kind == "dir":
            continue
        if not interpretertree.is_excluded_below(path, directory):
            yield path


def _paths(paths: Sequence[str]) -> str:
    return ", ".join(f"/{path}" for path in paths[:_MAX_NAMES])


def removals(base: BaseImage, sites: Iterable[tuple[str, Sequence[str], Iterable[str]]]) -> list[Entry]:
    """Entries that remove the base's files from the environment's site directories.

    `sites`: (prefix in the image, its site directories, its paths), the latter two relative to the prefix.
    """
    removed: dict[str, Entry] = {}
    for prefix, site_directories, paths in sites:
        kept = {f"{prefix}/{path}" for path in paths}
        parents = {parent for path in kept for parent in parent_directories(path)}
        roots = {f"{prefix}/{directory}" for directory in site_directories}
        for path in base.entries:
            if path in kept or path in parents or not any(path.startswith(f"{root}/") for root in roots):
                continue
            if path.rpartition("/")[0] in parents | roots:
                removed[path] = Entry(path, "gone")  # removes everything below it too
    return [removed[path] for path in sorted(removed)]
