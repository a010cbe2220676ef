"""Find the libraries that are loaded from outside the environment and the interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.machine.frameworks import is_driver
from repro_env.environment.system import closure, interpretertree, libpath
from repro_env.environment.system.ldcache import Library
from repro_env.environment.system.libpath import LibPath
from repro_env.environment.system.tree import real, within
from repro_env.schema.environment import Interpretation, Startup


class SystemLibraries(msgspec.Struct, frozen=True, kw_only=True):
    """The libraries that are loaded from outside the environment and the interpreter."""

    loader: closure.Loader
    variables: LibPath
    other_layers: tuple[str, ...]
    """Directories whose files are in other layers."""
    roots: tuple[str, ...]
    loaded: Mapping[str, str]
    """Names of libraries that the process loads from elsewhere, as in `closure.resolve`."""
    spelled: tuple[str, ...]
    """Paths as the loader spells them."""
    libraries: frozenset[str]
    """Real paths that the loader's rules find."""
    mapped_only: frozenset[str]
    """Real paths that were mapped at start-up but that the rules do not find (dlopen with a path, or with an unknown name)."""
    drivers: frozenset[str]
    """Real paths of libraries of the GPU driver, which are not captured."""
    chosen: Mapping[tuple[str, str], str]
    """As `Closure.chosen`."""
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def find_system_libraries(
    facts: Interpretation,
    startup: Startup,
    *,
    mapped: Iterable[Path],
    libraries: Iterable[Path],
    programs: Sequence[str] = (),
    environ: Mapping[str, str],
    other_layers: Sequence[str],
) -> SystemLibraries:
    """Find the libraries, and describe in `unknown` and `notes` what is missing or left out.

    `mapped`: loaded libraries in addition to those of `startup`; `libraries`: the environment's own; `programs`: files of
    `--with`; `environ`: the environment variables of Python, for LD_LIBRARY_PATH and LD_PRELOAD; `other_layers`: directories,
    besides the environment's and the interpreter's, whose files are in other layers.
    """
    python = facts.interpreter
    variables = libpath.read(environ)
    other_layers = (*environment_directories(facts), *other_layers, *map(real, other_layers))
    loaded_paths = [*startup.mapped, *map(str, mapped)]
    own = [str(path) for path in libraries]
    loader = closure.host(variables.directories)
    parts = interpretertree.binaries(python)
    interpreter_files = {real(part) for part in parts}
    unknown, notes = [*variables.ignored], []
    preload = []
    for name in variables.preload:
        paths = [name] if name.startswith("/") and Path(name).is_file() else loader.find(name, python.executable, ())
        preload += paths[:1]
        if not paths:
            unknown.append(f"{name} should be preloaded (LD_PRELOAD), but it is not on this machine")
        else:
            unknown.append(f"{paths[0]} is preloaded here (LD_PRELOAD); it is in the image, but runs do not preload it")
    loaded: dict[str, str] = {}
    for library in (*loaded_paths, *own):
        elf = loader.facts(library)
        for name in (library.rpartition("/")[2], elf.soname if elf else ""):
            if name:
                loaded[name] = "" if within(library, other_layers) or within(real(library), other_layers) else library
    roots = (*parts, *loaded_paths, *own, *programs, *preload)
    result = closure.resolve(roots, loader, program=python.executable, loaded=loaded)

    unknown += sorted(loader.damaged)
    spelled: list[str] = []
    found: set[str] = set()
    mapped_only: set[str] = set()
    drivers: set[str] = set()
    for library in (*result.libraries, *loaded_paths, *preload):
        real_path = real(library)
        if real_path in interpreter_files or within(library, other_layers) or within(real_path, other_layers):
            continue
        if is_driver(library) or is_driver(real_path):
            notes.append(f"{library} belongs to the GPU driver and is not captured: a run uses the driver of its machine")
            drivers.add(real_path)
        elif not Path(real_path).is_file():
            unknown.append(f"{library} is loaded but is not on this machine")
        else:
            spelled.append(library)
            found.add(real_path)
            if library in loaded_paths or library in preload:
                mapped_only.add(real_path)
    resolved = {real(library) for library in result.libraries}
    missing_by_file: dict[tuple[str, bool], list[str]] = {}
    for name, file in result.missing.items():
        missing_by_file.setdefault((file, is_driver(name)), []).append(name)
    for (by, driver), names in missing_by_file.items():
        line = f"{', '.join(names)}, needed by {by}, {'is' if len(names) == 1 else 'are'} not on this machine"
        (notes if driver else unknown).append(line)
    return SystemLibraries(
        loader=loader,
        variables=variables,
        other_layers=other_layers,
        roots=roots,
        loaded=loaded,
        spelled=tuple(sorted(spelled)),
        libraries=frozenset(found & resolved),
        mapped_only=frozenset(mapped_only - resolved),
        drivers=frozenset(drivers),
        chosen=result.chosen,
        unknown=tuple(unknown),
        notes=tuple(notes),
    )


def environment_directories(facts: Interpretation) -> list[str]:
    """The directories of the environment and the interpreter, as spelled and as real paths."""
    layout, python = facts.layout, facts.interpreter
    directories = [python.stdlib, python.platstdlib]
    if facts.is_venv or layout.prefix not in interpretertree.SHARED:
        directories.append(layout.prefix)
    else:
        directories += [f"{layout.prefix}/{site}" for site in (layout.purelib, layout.platlib)]
    if own := interpretertree.own_prefix(facts):
        directories.append(own)
    return [*directories, *map(real, directories)]


def changed_without_variable(libraries: SystemLibraries, program: str, cache: Iterable[Library]) -> tuple[str, ...]:
    """Libraries that the loader finds elsewhere without LD_LIBRARY_PATH and with this cache. One line each, sorted."""
    inside = closure.resolve(libraries.roots, closure.Loader(cache), program=program, loaded=libraries.loaded)
    lines = set()
    for (by, name), captured in libraries.chosen.items():
        in_run = inside.chosen.get((by, name), "")
        if (by, name) in inside.chosen and real(in_run) != real(captured):
            lines.add(f"{name}, needed by {by}: LD_LIBRARY_PATH leads to {captured}, but a run loads {in_run}")
    lines |= {f"{name}, needed by {by}: LD_LIBRARY_PATH leads to {libraries.chosen[by, name]}, but a run does not find it"
              for name, by in inside.missing.items() if (by, name) in libraries.chosen}  # fmt: skip
    return tuple(sorted(lines))
