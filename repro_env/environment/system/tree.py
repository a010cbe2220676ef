"""A file tree copied from this machine: a selection of its paths as they are, plus generated files.

Every path is stored under its real name: a symlink in the middle of a path is kept as a link, and the file behind it is
stored where it really is. So no file appears twice, and usrmerge, the aliases of pyenv and uv, and `/etc/alternatives`
work in the image as on the machine.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from repro_env.io.files import FileContents, Found, Key, entry_at, keys_of, walk
from repro_env.oci.entry import Contents, Entry, sort_with_parents
from repro_env.schema.errors import LockError
from repro_env.store.hashes import FileHashes, entries_of

_MAX_LINKS = 40
"""The kernel's limit (path_resolution(7))."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one layer."""

    entries: tuple[Entry, ...]
    """Paths relative to `/`, sorted, with all parent directories; every file has its sha256."""
    contents: Contents


class LiveTree:
    """Collects paths of this machine; `finish` hashes them."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}
        """By absolute real path."""
        self._generated: dict[str, bytes] = {}
        self._real: dict[str, str | None] = {"": ""}
        """Directory as requested -> real directory; None if it does not exist."""

    def __contains__(self, path: str) -> bool:
        return path in self._found

    def parent(self, path: str) -> str | None:
        """The path with its directory resolved; symlinks on the way are collected. None if the directory does not exist."""
        directory, _, name = path.rpartition("/")
        real = self._directory(directory, 0)
        return None if real is None else f"{real}/{name}"

    def add(self, path: str) -> Found | None:
        """Collect one absolute path; a symlink is collected as a link. None if nothing is there."""
        real = self.parent(path)
        return None if real is None else self._lstat(real)

    def follow(self, path: str) -> str | None:
        """Collect a path and the targets of its symlinks. Returns the real path, or None if it does not exist."""
        return self._follow(path, 0)

    def add_directory(self, directory: str, skip: Callable[[str, bool], bool] = lambda path, is_dir: False) -> None:  # noqa: ARG005
        """Collect a directory and its content; nothing if it does not exist. `skip(relative path, is_dir)` excludes paths.

        The targets of symlinks to files are collected too. Raises `PermissionError` for an unreadable directory.
        """
        real = self.follow(directory)
        if real is None or not Path(real).is_dir():
            return
        for found in walk(Path(real), skip=skip):
            path = f"{real}/{found.path}"
            if found.kind == "other":
                continue
            self._found[path] = msgspec.structs.replace(found, path=path[1:])
            if found.kind == "link" and Path(path).is_file():
                self.follow(path)

    def generate(self, path: str, data: bytes) -> None:
        """Add a generated file; it replaces the file at this path."""
        real = self.parent(path)
        self._generated[path if real is None else real] = data

    def remove(self, path: str) -> None:
        """Remove a real path again."""
        self._found.pop(path, None)

    def binaries(self) -> list[str]:
        """Probable programs and libraries, absolute, sorted; the ELF reader ignores other files."""
        return sorted(
            path
            for path, found in self._found.items()
            if found.kind == "file" and (found.executable or ".so" in path.rpartition("/")[2])
        )

    def finish(self, hashes: FileHashes, directories: Iterable[str] = ()) -> Tree:
        """The collected paths with these empty directories. Raises `CaptureError` for a file that cannot be read."""
        live = [found for path, found in self._found.items() if path not in self._generated]
        digests = hashes.of(Path("/"), [found for found in live if found.kind == "file"])
        entries = [*(Entry(directory.strip("/"), "dir") for directory in directories), *entries_of(live, digests)]
        generated = {path[1:]: data for path, data in self._generated.items()}
        entries += [Entry.of(path, data) for path, data in generated.items()]
        return Tree(entries=tuple(sort_with_parents(entries)), contents=LiveContents(generated, self.keys))

    @property
    def keys(self) -> dict[str, Key]:
        """The keys of the collected files, by path relative to `/`."""
        return keys_of(self._found.values())

    def _directory(self, directory: str, depth: int) -> str | None:
        if directory not in self._real:
            self._real[directory] = None  # a link that leads back here has no target
            self._real[directory] = self._follow(directory, depth)
        return self._real[directory]

    def _follow(self, path: str, depth: int) -> str | None:
        if depth > _MAX_LINKS:
            return None
        if path in ("", "/"):
            return ""
        directory, _, name = path.rstrip("/").rpartition("/")
        parent = self._directory(directory, depth)
        if parent is None or name in ("", "."):
            return parent
        if name == "..":
            return parent.rpartition("/")[0]
        found = self._lstat(f"{parent}/{name}")
        if found is None:
            return None
        if found.kind == "link":
            target = found.target if found.target.startswith("/") else f"{parent}/{found.target}"
            return self._follow(target, depth + 1)
        return f"{parent}/{name}"

    def _lstat(self, path: str) -> Found | None:
        collected = self._found.get(path)
        if collected is not None:
            return collected
        try:
            found = entry_at(path, path[1:])
            path.encode()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except UnicodeEncodeError:
            raise LockError("this file name is not valid UTF-8", where=repr(os.fsencode(path)), hint="rename the file") from None
        if found.kind == "other":
            return None  # devices, sockets and pipes belong to the running system
        self._found[path] = found
        return found


class LiveContents:
    """The contents of a live tree (`oci.entry.Contents`): generated files from memory, others read from this machine.

    `moved`: contents of the files below a path of the image that have another path on this machine.
    """

    def __init__(
        self, generated: Mapping[str, bytes], keys: Mapping[str, Key], moved: tuple[str, Contents] | None = None
    ) -> None:
        self._generated = generated
        self._live = FileContents(Path("/"), keys=keys)
        self._moved = moved

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        if entry.path in self._generated:
            return iter((self._generated[entry.path],))
        if self._moved is not None and entry.path.startswith(f"{self._moved[0]}/"):
            return iter(self._moved[1].chunks(entry))
        return self._live.chunks(entry)


def list_names(directory: str) -> list[str]:
    """The sorted file names in a directory; empty if it cannot be read."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return []


def list_links(directory: str) -> list[str]:
    """The sorted paths of the symlinks in a directory; empty if it cannot be read."""
    try:
        return sorted(item.path for item in os.scandir(directory) if item.is_symlink())
    except OSError:
        return []


def parent_directories(path: str) -> Iterator[str]:
    """The directories above a relative path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def real(path: str) -> str:
    """The path with all symlinks resolved, as far as it exists."""
    return os.path.realpath(path)


class Resolver:
    """Resolves symlinks as `real`, but those in the directories of paths only once, for as long as this object is used."""

    def __init__(self) -> None:
        self._directory = functools.cache(real)

    def parent(self, path: str) -> str:
        """The path with its directory resolved."""
        directory, _, name = path.rpartition("/")
        return f"{self._directory(directory or '/').rstrip('/')}/{name}"

    def __call__(self, path: str) -> str:
        followed = path
        for _ in range(_MAX_LINKS):
            location = self.parent(followed)
            try:
                target = os.readlink(location)  # noqa: PTH115 - a path object takes longer
            except OSError:
                return location if _is_plain(followed.rpartition("/")[2]) else real(path)
            parent = "" if target.startswith("/") else location.rpartition("/")[0]
            target = target.removeprefix("/")
            while target.startswith("../") and parent:
                parent, target = parent.rpartition("/")[0], target[3:]
            if not _is_plain(target):
                break
            followed = f"{parent}/{target}"
        return real(path)


def _is_plain(path: str) -> bool:
    return {"", ".", ".."}.isdisjoint(path.split("/"))


def links(path: str) -> Iterator[str]:
    """A path, and the path that each symlink on the way to the file leads to, as they are spelled."""
    for _ in range(_MAX_LINKS):
        yield path
        if not Path(path).is_symlink():
            return
        path = os.path.normpath(Path(real(path.rpartition("/")[0] or "/"), Path(path).readlink()))


def chain(path: str) -> tuple[str, ...]:
    """Every path from a name through symlinks to the file, with directories resolved."""
    names = (path.rpartition("/") for path in links(path))
    return tuple(f"{real(directory or '/').rstrip('/')}/{name}" for directory, _, name in names)


def within(path: str, directories: Iterable[str]) -> bool:
    """Whether a path is one of these directories or is below one of them."""
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)
