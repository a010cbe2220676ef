"""Find the libraries that are loaded from outside the environment and the interpreter, and the owner of each loaded library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.environment.machine import frameworks
from repro_env.environment.machine.gpus import is_driver
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.python.sites import Site
from repro_env.environment.system import elf, interpretertree, loader
from repro_env.environment.system.tree import Resolver, Tree, real, within
from repro_env.io.files import read_text
from repro_env.schema.environment import Interpretation, SharedLibrary
from repro_env.schema.frameworks import Frameworks


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment needs of the operating system."""

    facts: Interpretation
    startup: StartupReport
    environ: Mapping[str, str]
    """The environment variables of Python, for LD_LIBRARY_PATH and LD_PRELOAD."""
    libraries: tuple[str, ...] = ()
    """Absolute paths of the environment's own shared libraries and extension modules."""
    loaded: tuple[str, ...] = ()
    """Loaded libraries in addition to those of `startup`."""
    programs: tuple[str, ...] = ()
    """Names or absolute paths of `--with`."""
    directories: tuple[str, ...] = ()
    """Packages that own a file directly in one of these are included."""
    other_layers: tuple[str, ...] = ()
    """Directories, besides the environment's and the interpreter's, whose files are in other layers."""
    read: loader.Reader = elf.read


class SystemLibraries(msgspec.Struct, frozen=True, kw_only=True):
    """The libraries that are loaded from outside the environment and the interpreter."""

    other_layers: tuple[str, ...]
    """Directories whose files are in other layers."""
    spelled: tuple[str, ...]
    """Paths as the loader spells them."""
    paths: frozenset[str]
    """Real paths."""
    drivers: frozenset[str]
    """Real paths of libraries of the GPU driver, which are not captured."""
    unknown: tuple[str, ...]
    remarks: tuple[str, ...]


def find_system_libraries(needs: Needs, programs: Sequence[str]) -> SystemLibraries:
    """Find the libraries, and describe in `unknown` and `remarks` what is missing or left out. `programs`: files of `--with`."""
    python = needs.facts.interpreter
    other_layers = (*_environment_directories(needs.facts), *needs.other_layers, *map(real, needs.other_layers))
    loaded = (*needs.startup.mapped, *needs.loaded)
    machine = loader.host(needs.environ, needs.read)
    parts = interpretertree.binaries(python)
    resolve = Resolver()
    interpreter_files = {resolve(part) for part in parts}
    names = {path.rpartition("/")[2] for path in (*loaded, *needs.libraries)}
    names |= {facts.soname for path in (*loaded, *needs.libraries) if (facts := machine.facts(path))}
    closure = machine.resolve((*parts, *loaded, *needs.libraries, *programs), python.executable, names)
    unknown = [*loader.library_path(needs.environ)[1], *_preloaded(needs.environ), *sorted(machine.damaged)]
    remarks: list[str] = []
    spelled: list[str] = []
    drivers: set[str] = set()
    for library in (*closure.libraries, *loaded):
        real_path = resolve(library)
        if real_path in interpreter_files or within(library, other_layers) or within(real_path, other_layers):
            continue
        if is_driver(library) or is_driver(real_path):
            remarks.append(f"{library} belongs to the GPU driver and is not captured: a run uses the driver of its machine")
            drivers.add(real_path)
        elif not Path(real_path).is_file():
            unknown.append(f"{library} is loaded but is not on this machine")
        else:
            spelled.append(library)
    missing: dict[tuple[str, bool], list[str]] = {}
    for name, file in closure.missing.items():
        missing.setdefault((file, is_driver(name)), []).append(name)
    for (file, is_of_driver), missing_names in missing.items():
        verb = "is" if len(missing_names) == 1 else "are"
        line = f"{', '.join(missing_names)}, needed by {file}, {verb} not on this machine"
        (remarks if is_of_driver else unknown).append(line)
    return SystemLibraries(
        other_layers=other_layers,
        spelled=tuple(sorted(spelled)),
        paths=frozenset(map(resolve, spelled)),
        drivers=frozenset(drivers),
        unknown=tuple(unknown),
        remarks=tuple(remarks),
    )


def _preloaded(environ: Mapping[str, str]) -> list[str]:
    """A line for each library that is preloaded into the environment's Python."""
    text = f"{environ.get('LD_PRELOAD', '')} {read_text(Path('/etc/ld.so.preload'))}"
    names = dict.fromkeys(filter(None, re.split(r"[:\s]+", text)))
    return [f"{name} is preloaded here (LD_PRELOAD or /etc/ld.so.preload); runs do not preload it" for name in names]


def _environment_directories(facts: Interpretation) -> list[str]:
    """The directories of the environment and the interpreter, as spelled and as real paths."""
    directories = [*facts.directories, *filter(None, [interpretertree.own_prefix(facts)])]
    return [*directories, *map(real, directories)]


class Owners:
    """The owners of libraries by real path: a wheel, conda package or system package, `interpreter`, `driver`, or none."""

    def __init__(
        self, sites: Sequence[Site], packaged: Mapping[str, str], outside: Iterable[SharedLibrary], runtime: Tree | None
    ) -> None:
        """`packaged`: real path -> name of the owner, for files of conda packages. `outside`: libraries of the base."""
        self._libraries = {library.path: library for library in outside}
        self._interpreter = {f"/{entry.path}": entry.sha256 for entry in runtime.entries} if runtime is not None else {}
        self._owner = dict.fromkeys(self._interpreter, "interpreter")
        for site in sites:
            self._owner |= frameworks.owners(site.scanned.distributions, site.prefix)
        self._owner |= packaged
        self._hashes = [(os.path.realpath(site.prefix) + "/", site.hashes) for site in sites]

    def find(self, path: str) -> SharedLibrary:
        """A library with its owner and sha256; None for one that was not read, like a driver's."""
        if path in self._libraries:
            return self._libraries[path]
        owner = self._owner.get(path, "")
        if is_driver(path) and not owner.startswith(("wheel ", "conda ")):
            return SharedLibrary(path=path, owner="driver", sha256=None)
        digest = self._interpreter.get(path, "")
        for prefix, hashes in self._hashes:
            if path.startswith(prefix):
                digest = hashes.get(path[len(prefix) :], digest)
        return SharedLibrary(path=path, owner=owner, sha256=f"sha256:{digest}" if digest else None)

    def libraries(self, mapped: Iterable[str]) -> tuple[SharedLibrary, ...]:
        """The libraries that the loader's rules find outside the environment, and all mapped libraries; sorted."""
        return tuple(self.find(path) for path in sorted(self._libraries.keys() | {os.path.realpath(path) for path in mapped}))

    def frameworks(self, facts: Frameworks) -> Frameworks:
        """The facts with the owner and sha256 of each library."""
        found = [(library, self.find(library.path)) for library in facts.libraries]
        libraries = (msgspec.structs.replace(library, owner=owned.owner, sha256=owned.sha256) for library, owned in found)
        return msgspec.structs.replace(facts, libraries=tuple(libraries))
