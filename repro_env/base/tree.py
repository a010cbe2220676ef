"""A file tree cut from the live machine: which of its paths, as they are, plus files made by a fixed rule.

Every path is written by its one real name: a symlink in the middle of a path is kept as the link it is, and what
lies behind it is stored where it really lies. So nothing appears twice, and usrmerge, pyenv's and uv's aliases and
`/etc/alternatives` work inside as they do outside.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from repro_env.image.entry import Contents, Entry, ordered
from repro_env.io.files import FileContents, Found, Key, keys_of, walk
from repro_env.model.environment import SystemPackage
from repro_env.model.errors import LockError

_MOST_LINKS = 40
"""As the kernel (path_resolution(7))."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's worth of the live machine."""

    entries: tuple[Entry, ...]
    """Paths relative to `/`, sorted, every parent present, every file with its sha256."""
    contents: Contents
    packages: tuple[SystemPackage, ...] = ()
    """Those it was cut from, sorted by name."""
    edited: tuple[str, ...] = ()
    """`<path> (<package>)`: not as its package installed it; carried as it is."""
    unknown: tuple[str, ...] = ()
    """What could not be found, read or told. One line each."""
    notes: tuple[str, ...] = ()
    """What the user should know, and nothing is wrong with. One line each."""


class Hashes(Protocol):
    """What is needed of `io.hashes.FileHashes`."""

    def of(self, root: Path, found: Sequence[Found], /) -> dict[str, str]: ...


class LiveTree:
    """Collects paths of the live machine; `finish` hashes them."""

    def __init__(self) -> None:
        self._found: dict[str, Found] = {}
        """By absolute real path."""
        self._made: dict[str, bytes] = {}
        self._real: dict[str, str | None] = {"": ""}
        """Folder as asked for -> real folder; None when it leads nowhere."""
        self.links: set[str] = set()
        """Symlinks collected, absolute."""

    def __contains__(self, path: str) -> bool:
        return path in self._found

    def parent(self, path: str) -> str | None:
        """The path with its folder resolved, the links on the way collected; None when there is no such folder."""
        folder, _, name = path.rpartition("/")
        real = self._folder(folder, 0)
        return None if real is None else f"{real}/{name}"

    def add(self, path: str) -> Found | None:
        """Collect what lies at an absolute path: a symlink as the link it is. None when there is nothing."""
        real = self.parent(path)
        return None if real is None else self._look(real)

    def follow(self, path: str) -> str | None:
        """Collect a path, and through every symlink what it leads to. The real path, or None when it leads nowhere."""
        return self._follow(path, 0)

    def below(self, folder: str, skip: Callable[[str, bool], bool]) -> None:
        """Collect all below a folder but what `skip(path relative to it, is_dir)` leaves out; nothing when it is not there.

        A symlink to a file brings that file with it, wherever it lies. Raises `PermissionError` for an unreadable folder.
        """
        real = self.follow(folder)
        if real is None or not Path(real).is_dir():
            return
        for found in walk(Path(real), skip=skip):
            path = f"{real}/{found.path}"
            if found.kind == "other":
                continue
            self._found[path] = msgspec.structs.replace(found, path=path[1:])
            if found.kind == "link":
                self.links.add(path)
                if Path(path).is_file():
                    self.follow(path)

    def merge(self, other: LiveTree) -> None:
        """Collect all that another tree has collected."""
        self._found.update(other._found)
        self.links |= other.links

    def make(self, path: str, data: bytes) -> None:
        """A file made by rule, in place of whatever lies there."""
        real = self.parent(path)
        self._made[path if real is None else real] = data

    def drop(self, path: str) -> None:
        """Take back a real path."""
        self._found.pop(path, None)
        self.links.discard(path)

    def paths(self) -> list[str]:
        """Files and links collected from the machine, absolute, sorted."""
        return sorted(path for path, found in self._found.items() if found.kind != "dir")

    def found(self, path: str) -> Found | None:
        """What was collected at a real path."""
        return self._found.get(path)

    def finish(self, hashes: Hashes, folders: Iterable[str] = ()) -> tuple[tuple[Entry, ...], Contents]:
        """The entries, and their bytes. Raises `CaptureError` for a file that cannot be read."""
        live = [found for path, found in self._found.items() if path not in self._made]
        digests = hashes.of(Path("/"), [found for found in live if found.kind == "file"])
        entries = [Entry(folder.strip("/"), "dir") for folder in folders]
        for found in live:
            if found.kind == "file":
                entries.append(Entry(found.path, "file", found.executable, found.size, digests[found.path]))
            elif found.kind == "link":
                entries.append(Entry(found.path, "link", target=found.target))
            else:
                entries.append(Entry(found.path, "dir"))
        made = {path[1:]: data for path, data in self._made.items()}
        entries += [Entry(path, "file", size=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in made.items()]
        return tuple(ordered(entries)), LiveContents(made, self.keys)

    @property
    def keys(self) -> dict[str, Key]:
        """Of the files collected from the machine, by path from the root."""
        return keys_of(self._found.values())

    def _folder(self, folder: str, depth: int) -> str | None:
        if folder not in self._real:
            self._real[folder] = None  # a link that leads back here leads nowhere
            self._real[folder] = self._follow(folder, depth)
        return self._real[folder]

    def _follow(self, path: str, depth: int) -> str | None:
        if depth > _MOST_LINKS:
            return None
        if path in ("", "/"):
            return ""
        folder, _, name = path.rstrip("/").rpartition("/")
        parent = self._folder(folder, depth)
        if parent is None or name in ("", "."):
            return parent
        if name == "..":
            return parent.rpartition("/")[0]
        found = self._look(f"{parent}/{name}")
        if found is None:
            return None
        if found.kind == "link":
            target = found.target if found.target.startswith("/") else f"{parent}/{found.target}"
            return self._follow(target, depth + 1)
        return f"{parent}/{name}"

    def _look(self, path: str) -> Found | None:
        known = self._found.get(path)
        if known is not None:
            return known
        try:
            facts = os.lstat(path)
            target = os.readlink(path) if stat.S_ISLNK(facts.st_mode) else ""  # noqa: PTH115
            path.encode()
            target.encode()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        except UnicodeEncodeError:
            raise LockError("has a name or target that is not UTF-8", where=repr(path), hint="rename it") from None
        key = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        if stat.S_ISREG(facts.st_mode):
            found = Found(path[1:], "file", bool(facts.st_mode & 0o100), facts.st_size, "", key)
        elif stat.S_ISLNK(facts.st_mode):
            found = Found(path[1:], "link", False, 0, target, key)
            self.links.add(path)
        elif stat.S_ISDIR(facts.st_mode):
            found = Found(path[1:], "dir", False, 0, "", key)
        else:
            return None  # devices, sockets and pipes belong to the running machine
        self._found[path] = found
        return found


class LiveContents:
    """Bytes of a live tree (`image.entry.Contents`): files made by rule from memory, all others from their own places."""

    def __init__(self, made: dict[str, bytes], keys: Mapping[str, Key]) -> None:
        self._made = made
        self._live = FileContents(Path("/"), keys=keys)

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        if entry.path in self._made:
            return iter((self._made[entry.path],))
        return self._live.chunks(entry)


def real(path: str) -> str:
    """The path with every symlink resolved, as far as it exists."""
    return os.path.realpath(path)


def within(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these folders or lies below one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
