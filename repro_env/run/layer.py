"""The writable layer of a container that has ended, as a directory of this machine.

The engine lists every path that the command changed, and gives files as tar archives. Both are untrusted: a name counts only
below the path that was asked for, nothing is written through a symlink, and no more than a bound is read.
"""

from __future__ import annotations

import io
import os
import posixpath
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from repro_env.io.engine import Engine
from repro_env.model.errors import EngineError
from repro_env.run.outside import Bound, Rules, Unkept, Written

_MODIFIED, _REMOVED = 0, 2
"""Kinds of a change (Engine API, "Get changes on a container's filesystem")."""
_IS_DIRECTORY = 1 << 31
"""In the mode of the engine's answers (Go, io/fs, ModeDir)."""


def fetch(engine: Engine, container: str, target: Path, rules: Rules, bound: Bound) -> list[Unkept]:
    """Write what the command left in its container to `target`. Returns what was not fetched. Raises `EngineError`."""
    with engine.talk("list what the command wrote"):
        listed: list[dict[str, Any]] = engine.client.api.diff(container) or []
    changes = {str(change["Path"]): int(change["Kind"]) for change in listed if change["Kind"] != _REMOVED}
    layer = _Layer(engine, container, target, bound)
    for path in trees(changes, rules):
        if not layer.fetch(path, alone=changes[path] == _MODIFIED):
            for below in changes:
                if below == path or below.startswith(path + "/"):
                    layer.fetch(below, alone=True)
    return layer.unkept


def trees(changes: Mapping[str, int], rules: Rules) -> Iterator[str]:
    """The fewest paths that hold all that was written: added directories, and files. `changes`: path -> kind. Pure.

    Left out is what `rules` skip. A directory that holds a mount is not taken as one, since the engine would give what is mounted.
    """
    wanted = [path for path in changes if not any(rules.skip(above) for above in _above(path))]
    parents = {above for path in changes for above in _above(path)[:-1]}
    mounts = {above for path in rules.mounted for above in _above(path)}
    taken: set[str] = set()
    for path in sorted(wanted, key=lambda path: path.split("/")):
        is_tree = path not in mounts and not (path in parents and changes[path] == _MODIFIED)
        if is_tree and taken.isdisjoint(_above(path)):
            taken.add(path)
            yield path


def _above(path: str) -> list[str]:
    """`/a/b` -> `/a`, `/a/b`."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]


class _Layer:
    def __init__(self, engine: Engine, container: str, target: Path, bound: Bound) -> None:
        self._engine = engine
        self._container = container
        self._target = target
        self._bound = bound
        self._size = self._files = 0
        self._there: set[str] = set()
        self.unkept: list[Unkept] = []

    def fetch(self, path: str, *, alone: bool = False) -> bool:
        """Write the tree at `path`, or with `alone` the file or symlink. False when something in the tree is over the bound."""
        if path in self._there:
            return True
        try:
            with self._engine.talk("fetch what the command wrote"):
                chunks, facts = self._engine.client.api.get_archive(self._container, path)
                if alone and facts["mode"] & _IS_DIRECTORY:
                    return True
                stream = io.BufferedReader(_Chunks(chunks))
                try:
                    with tarfile.open(fileobj=stream, mode="r|") as archive:
                        return self._write(archive, path, alone=alone)
                finally:
                    chunks.close()
        except (EngineError, tarfile.TarError, OSError) as error:
            if alone:
                self.unkept.append(Unkept(Written(path, "", 0), str(error)))
            return False

    def _write(self, archive: tarfile.TarFile, path: str, *, alone: bool) -> bool:
        top = path.rpartition("/")[0]
        for member in archive:
            name = posixpath.normpath(f"{top}/{member.name}")
            if name != path and not name.startswith(path + "/"):
                continue
            size = member.size if member.isreg() else 0
            is_file = member.isreg() or member.issym() or member.islnk()
            if is_file and (self._size + size > self._bound.size or self._files >= self._bound.files):
                if not alone:
                    return False
                self.unkept.append(Unkept(Written(name, "", size), "over the bound"))
                return True
            if is_file and self._is_free(name):
                self._put(archive, member, name, f"{top}/{member.linkname}")
                self._there.add(name)
                self._size += size
                self._files += 1
        return True

    def _is_free(self, name: str) -> bool:
        """Whether a file can be made there: every directory above is one, and nothing is there yet."""
        here = self._target
        for part in name.strip("/").split("/")[:-1]:
            here = here / part
            if here.is_symlink() or (here.exists() and not here.is_dir()):
                return False
        return not os.path.lexists(f"{self._target}{name}")

    def _put(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, linked: str) -> None:
        here = Path(f"{self._target}{name}")
        here.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            here.symlink_to(member.linkname)
        elif member.islnk():
            other = posixpath.normpath(linked)
            if other in self._there:
                os.link(f"{self._target}{other}", here, follow_symlinks=False)
        else:
            content = archive.extractfile(member)
            with here.open("xb") as file:
                if content is not None:
                    shutil.copyfileobj(content, file, 1 << 20)
            here.chmod(member.mode & 0o777 | 0o600)
            os.utime(here, (member.mtime, member.mtime))


class _Chunks(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count
