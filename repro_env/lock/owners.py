"""Whose each shared library is that the environment really uses, and its bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from repro_env.base.host import Cut
from repro_env.base.tree import Tree
from repro_env.capture import frameworks
from repro_env.lock.places import Place
from repro_env.model.environment import SharedLibrary


class Owners:
    """By real path: `wheel`, `conda`, the system's package, `interpreter`, `driver`, or nobody."""

    def __init__(self, places: Sequence[Place], packaged: Mapping[str, str], cut: Cut, runtime: Tree | None) -> None:
        """`packaged`: real path -> owner in words, of what conda packages hold."""
        self._known = {one.path: one for one in cut.libraries}
        self._owner = {path: one.owner for path, one in self._known.items()}
        self._interpreter = {f"/{entry.path}": entry.sha256 for entry in runtime.entries} if runtime is not None else {}
        self._owner |= dict.fromkeys(self._interpreter, "interpreter")
        for place in places:
            self._owner |= frameworks.owners(place.scanned.distributions, place.prefix)
        self._owner |= packaged
        self._hashes = [(os.path.realpath(place.prefix) + "/", place.hashes) for place in places]

    def owner(self, path: str) -> str:
        """In words, as `SharedLibrary.owner` has them; empty for nobody's."""
        return self._owner.get(path, "")

    def sha256(self, path: str) -> str | None:
        """Where its bytes were read: a driver's are not."""
        for prefix, hashes in self._hashes:
            if path.startswith(prefix) and (found := hashes.get(path[len(prefix) :])):
                return f"sha256:{found}"
        if found := self._interpreter.get(path):
            return f"sha256:{found}"
        return self._known[path].sha256 if path in self._known else None

    def libraries(self, mapped: Iterable[str]) -> tuple[SharedLibrary, ...]:
        """Those that the loader's rules lead to outside of the environment, and the mapped ones wherever they lie; sorted."""
        found = dict(self._known)
        for path in {os.path.realpath(path) for path in mapped} - found.keys():
            driver = frameworks.is_driver(path) and not self.owner(path).startswith(("wheel ", "conda "))
            found[path] = SharedLibrary(
                path=path, owner="driver" if driver else self.owner(path), sha256=None if driver else self.sha256(path)
            )
        return tuple(found[path] for path in sorted(found))
