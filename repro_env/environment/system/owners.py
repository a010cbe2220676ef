"""Map each loaded shared library to the package that owns it, and to its sha256."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from repro_env.environment.machine import frameworks
from repro_env.environment.python.sites import Site
from repro_env.environment.system.host import SystemFiles
from repro_env.environment.system.tree import Tree
from repro_env.schema.environment import SharedLibrary


class Owners:
    """The owners of libraries by real path: a wheel, conda package or system package, `interpreter`, `driver`, or none."""

    def __init__(
        self, sites: Sequence[Site], packaged: Mapping[str, str], system_files: SystemFiles, runtime: Tree | None
    ) -> None:
        """`packaged`: real path -> name of the owner, for files of conda packages."""
        self._libraries = {library.path: library for library in system_files.libraries}
        self._owner = {path: library.owner for path, library in self._libraries.items()}
        self._interpreter = {f"/{entry.path}": entry.sha256 for entry in runtime.entries} if runtime is not None else {}
        self._owner |= dict.fromkeys(self._interpreter, "interpreter")
        for site in sites:
            self._owner |= frameworks.owners(site.scanned.distributions, site.prefix)
        self._owner |= packaged
        self._hashes = [(os.path.realpath(site.prefix) + "/", site.hashes) for site in sites]

    def owner(self, path: str) -> str:
        """The owner's name, as in `SharedLibrary.owner`; empty for a library without an owner."""
        return self._owner.get(path, "")

    def sha256(self, path: str) -> str | None:
        """The sha256; None for libraries that were not read, like a driver's."""
        for prefix, hashes in self._hashes:
            if path.startswith(prefix) and (found := hashes.get(path[len(prefix) :])):
                return f"sha256:{found}"
        if found := self._interpreter.get(path):
            return f"sha256:{found}"
        return self._libraries[path].sha256 if path in self._libraries else None

    def libraries(self, mapped: Iterable[str]) -> tuple[SharedLibrary, ...]:
        """The libraries that the loader's rules find outside the environment, and all mapped libraries; sorted."""
        found = dict(self._libraries)
        for path in {os.path.realpath(path) for path in mapped} - found.keys():
            driver = frameworks.is_driver(path) and not self.owner(path).startswith(("wheel ", "conda "))
            found[path] = SharedLibrary(
                path=path, owner="driver" if driver else self.owner(path), sha256=None if driver else self.sha256(path)
            )
        return tuple(found[path] for path in sorted(found))
