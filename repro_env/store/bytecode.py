"""Bytecode of images' modules, by image: `bytecode/<image id>/<number>/tree/`, laid out as PYTHONPYCACHEPREFIX.

Python takes such bytecode as it is: a torn file would be an error in somebody's run. And a tree that lies below an
overlay must not change (kernel documentation, overlayfs). So a tree is written once, in a temporary folder, renamed
into place whole, and never touched again. More modules make the next number: links to the files there were, and
the new ones. A run takes the highest number, holding a lock on it; lower ones are removed when no run holds them.

What a machine lost when it lost power, and what somebody else cut or removed, is seen by the list beside the tree:
names and sizes each time, the bytes once per boot. A tree that is not what its list says counts as absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import CHUNK, room, sha256_of
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LARGEST = 64 * CHUNK
_HASHED = 1
"""The bit of the flags that says: not valid by its source's time (PEP 552)."""


class _File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    path: str
    size: int
    sha256: str


_list = msgspec.json.Decoder(list[_File])


class Bytecode:
    """Safe to use from several processes at once, and to kill at any time."""

    def __init__(self, root: Path, *, locks: Path, temp: Temp, boot: Boot) -> None:
        self._root = root
        self._locks = locks
        self._temp = temp
        self._boot = boot

    @contextlib.contextmanager
    def shown(self, image_id: str, *, hidden: Collection[str] | Literal["all"] = ()) -> Iterator[Path | None]:
        """The tree to show to a run, or None. It stays as it is until the end of the block.

        `hidden`: files that are left out of it, as though they were not kept; `all` gives None.
        """
        with contextlib.ExitStack() as stack:
            try:
                tree = None if hidden == "all" else self._newest(hex_of(image_id), stack)
                if tree is not None and hidden:
                    tree = self._without(frozenset(hidden), tree, stack)
            except OSError:
                tree = None  # a run does without
            yield tree

    @contextlib.contextmanager
    def adding(self, image_id: str) -> Iterator[bool]:
        """Whether this process may add to an image; no when another one is at it. It need not wait: it is a cache."""
        fd = os.open(self._locks / f"bytecode-{hex_of(image_id)}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def verify(self, image_id: str) -> bool:
        """Whether what is kept for an image is whole: every byte is read."""
        name = hex_of(image_id)
        with contextlib.ExitStack() as stack:
            numbers = self._numbers(name)
            return not numbers or self._newest(name, stack, thorough=True) is not None

    def remove(self, image_id: str) -> None:
        """Remove what is kept for an image, as far as no run has it."""
        name = hex_of(image_id)
        self._remove(name, self._numbers(name))

    def missing(self, image_id: str, paths: Iterable[str]) -> frozenset[str]:
        """Those of these bytecode files that are not kept yet."""
        with self.shown(image_id) as tree:
            return frozenset(path for path in paths if tree is None or not (tree / path).is_file())

    def add(self, image_id: str, made: Path, paths: Iterable[str]) -> int:
        """Keep these files of the folder `made`, in place of those of the same names. Returns how many are kept anew.

        To be called inside `adding`. Files that are not there, or no bytecode of the kind that is kept, are left out.
        Raises `DiskError`, `OSError`; then nothing has changed.
        """
        name = hex_of(image_id)
        with room(self._root), contextlib.ExitStack() as stack:
            temporary = stack.enter_context(self._temp.folder())
            young = temporary / "new"
            old = self._newest(name, stack)
            listed = {file.path: file for file in _listed(old.parent)} if old else {}
            added = set()
            for path in sorted(set(paths)):
                data = _read(made / path)
                file = _File(path, len(data), hashlib.sha256(data).hexdigest()) if data is not None else None
                if data is not None and file is not None and listed.get(path) != file:
                    _at(young, path).write_bytes(data)
                    listed[path] = file
                    added.add(path)
            if not added:
                return 0
            for path in listed.keys() - added:
                os.link((old or young) / path, _at(young, path))
            (young / "list").write_bytes(msgspec.json.encode([listed[path] for path in sorted(listed)]))
            (self._root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            numbers = self._numbers(name)
            self._boot.see(f"bytecode-{name}")
            young.rename(self._root / name / str(max(numbers, default=0) + 1))
            stack.pop_all().close()
        self._remove(name, numbers)
        return len(added)

    def _newest(self, name: str, stack: contextlib.ExitStack, *, thorough: bool = False) -> Path | None:
        """The tree with the highest number, locked until `stack` ends, if it is whole."""
        while numbers := self._numbers(name):
            folder = self._root / name / str(numbers[-1])
            try:
                fd = os.open(folder, _FOLDER)
            except FileNotFoundError:
                continue  # a higher one took its place just now
            stack.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if not folder.is_dir():
                continue
            mark = f"bytecode-{name}"
            seen = self._boot.seen(mark)
            if not _is_whole(folder, thorough=thorough or not seen):
                return None
            if not seen:
                self._boot.see(mark)
            elif not thorough:
                self._boot.use(mark)
            return folder / "tree"
        return None

    def _without(self, hidden: frozenset[str], tree: Path, stack: contextlib.ExitStack) -> Path:
        """The tree, or links to what is left of it, which are removed when `stack` ends. Raises `OSError`."""
        listed = [file.path for file in _listed(tree.parent)]
        if hidden.isdisjoint(listed):
            return tree
        left = stack.enter_context(self._temp.folder()) / "tree"
        left.mkdir()
        for path in listed:
            if path not in hidden:
                target = left / path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(tree / path, target)
        return left

    def _numbers(self, name: str) -> list[int]:
        try:
            names = [path.name for path in (self._root / name).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(int(one) for one in names if one.isascii() and one.isdigit())

    def _remove(self, name: str, numbers: Iterable[int]) -> None:
        """Remove these trees as far as no run holds them; the others go next time."""
        for number in numbers:
            folder = self._root / name / str(number)
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(folder, _FOLDER)
                try:
                    with contextlib.suppress(BlockingIOError), self._temp.folder() as temporary:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        folder.rename(temporary / "old")
                finally:
                    os.close(fd)


def _at(young: Path, path: str) -> Path:
    """Where a file of a new tree goes; its folder is there."""
    target = young / "tree" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _listed(folder: Path) -> list[_File]:
    """Raises `OSError`, `msgspec.MsgspecError`."""
    return _list.decode((folder / "list").read_bytes())


def _is_whole(folder: Path, *, thorough: bool) -> bool:
    """Whether the files of the list are there with their sizes; `thorough`: with their bytes."""
    tree = f"{folder}/tree/"
    try:
        for file in _listed(folder):
            if os.lstat(tree + file.path).st_size != file.size:
                return False
            if thorough and sha256_of(Path(tree + file.path)) != file.sha256:
                return False
    except (OSError, msgspec.MsgspecError):
        return False
    return True


def _read(path: Path) -> bytes | None:
    """The bytes of a bytecode file that does not go by its source's time, which is always the same; None when it is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        data = file.read(_LARGEST + 1)
    return data if 16 < len(data) <= _LARGEST and data[4] & _HASHED else None
