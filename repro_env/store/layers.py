"""Layers as folders: `layers/<hex of diff id>/` is the tree itself. A folder that is there is whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import queue
import secrets
import stat
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from repro_env.image import tar
from repro_env.image.entry import Entry, Members, members
from repro_env.io.files import FileContents, Found, locked, room, walk
from repro_env.model.errors import ArtifactError, BuildError, ReproEnvError, StoreError
from repro_env.store.boot import Boot
from repro_env.store.digests import hex_of
from repro_env.store.temp import Temp

_TIME = (tar.MTIME * 10**9, tar.MTIME * 10**9)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDERS = 64
_LONGEST = 4000
_DEEPEST = 200
_BATCH = 1 << 20
"""Bytes that are handed to the hashing thread at once."""
_QUEUED = 8


class Layers:
    """Unpacked layers, by diff ID."""

    def __init__(
        self, root: Path, *, locks: Path, temp: Temp, boot: Boot, links: Path, damaged: Path, named: Callable[[], Collection[str]]
    ) -> None:
        """`links`: where trees of links to layers' files are kept. `damaged`: where what is not whole goes while a run has it.

        `named`: says what runs have (hex).
        """
        self._named = named
        self._root = root
        self._links = links
        self._damaged = damaged
        self._locks = locks
        self._temp = temp
        self._boot = boot

    def path(self, diff_id: str) -> Path | None:
        """The tree of a layer, or None. Its files are owned by the user, mode 0644 and 0755, mtime `tar.MTIME`.

        Every byte is read once per boot: the machine may have gone down before all of it was on the disk. Whether
        something was written to it since is looked at when that was not done for `boot.FRESH` seconds: it takes a
        look at each file. A layer that is not whole counts as absent.
        """
        name = hex_of(diff_id)
        folder = self._root / name
        if not folder.is_dir():
            return None
        seen = self._boot.seen(name)
        if seen and self._boot.fresh(name):
            return folder
        if seen and _is_untouched(folder):
            self._boot.use(name)
            return folder
        with locked(self._locks / name):
            if not folder.is_dir() or not self._mended(diff_id):
                self._discard(name)
                return None
            self._boot.see(name)
        return folder

    def _mended(self, diff_id: str) -> bool:
        """Whether every byte is right; times that are not are set anew, since runs see them."""
        if not self.verify(diff_id):
            return False
        _set_times(self._root / hex_of(diff_id))
        return True

    def discard(self, diff_id: str) -> None:
        """Put a layer that is not whole out of the way. A run that has it goes on with it: the next one gets a new one.

        Trees of links go with it: their files are the layers' own.
        """
        with locked(self._locks / hex_of(diff_id)):
            self._discard(hex_of(diff_id))

    def _discard(self, name: str) -> None:
        links = [path for path in self._links.glob("[0-9a-f]*") if path.is_dir()]
        named = self._named()
        with self._temp.folder() as temporary:
            for path in (self._root / name, *links):
                self._damaged.mkdir(mode=0o700, exist_ok=True)
                folder = self._damaged if path.name in named else temporary
                with contextlib.suppress(FileNotFoundError):
                    path.rename(folder / f"{path.name}.{secrets.token_hex(4)}")

    def unpack(self, diff_id: str, members: Members, *, size: int = 0) -> Path:
        """The tree of a layer, written from its members unless it is there. `size`: bytes of the tar, for messages.

        Raises `BuildError` when the members are another layer than `diff_id`, or would leave the folder;
        `DiskError` when there is no room; `ArtifactError` for a content of another size than its entry.
        Whatever it raises, nothing is left behind.
        """
        name = hex_of(diff_id)
        if found := self.path(diff_id):
            return found
        with room(self._root, size), locked(self._locks / name), self._temp.folder() as temporary:
            if found := self._root / name if (self._root / name).is_dir() else None:
                return found  # another process was first
            got = _write(temporary / "tree", members, size)
            if got != f"sha256:{name}":
                raise BuildError(
                    f"the layer is {got}, not the expected sha256:{name}",
                    hint="what it was made of is not what the spec was made of; rebuild from the wheels, or capture again",
                )
            return self._keep(temporary / "tree", name)

    def add(self, members: Members, *, size: int = 0) -> str:
        """Write a tree whose diff ID is not known yet; returns it. Raises as `unpack`."""
        with room(self._root, size), self._temp.folder() as temporary:
            diff_id = _write(temporary / "tree", members, size)
            name = hex_of(diff_id)
            with locked(self._locks / name):
                if not (self._root / name).is_dir():
                    self._keep(temporary / "tree", name)
        return diff_id

    def members(self, diff_id: str) -> Members:
        """What the tree on disk holds, as its tar has it. Not checked. Raises `OSError`, `StoreError`, `ArtifactError` when read."""
        folder = self._root / hex_of(diff_id)
        entries = sorted((_entry(folder, found) for found in walk(folder)), key=lambda entry: entry.key)
        yield from members(entries, FileContents(folder))

    def verify(self, diff_id: str) -> bool:
        """Whether the tree on disk still is the layer: every byte is read."""
        hasher = hashlib.sha256()
        try:
            for chunk in tar.write(self.members(diff_id)):
                hasher.update(chunk)
        except (ReproEnvError, OSError):
            return False
        return f"sha256:{hasher.hexdigest()}" == f"sha256:{hex_of(diff_id)}"

    def remove(self, diff_id: str) -> None:
        """Remove a layer, if it is there. Nothing may be running in it."""
        name = hex_of(diff_id)
        with locked(self._locks / name), self._temp.folder() as temporary, contextlib.suppress(FileNotFoundError):
            (self._root / name).rename(temporary / "old")  # first out of sight: a half-removed layer must not look whole

    def _keep(self, tree: Path, name: str) -> Path:
        self._boot.see(name)
        tree.rename(self._root / name)
        return self._root / name


def _is_untouched(root: Path) -> bool:
    """Whether everything still has the time that it was given when it was written: what is written to gets another."""
    folders = [str(root)]
    try:
        if root.stat().st_mtime_ns != _TIME[1]:
            return False
        while folders:
            with os.scandir(folders.pop()) as listing:
                for item in listing:
                    if item.stat(follow_symlinks=False).st_mtime_ns != _TIME[1]:
                        return False
                    if item.is_dir(follow_symlinks=False):
                        folders.append(item.path)
    except OSError:
        return False
    return True


def _set_times(root: Path) -> None:
    for found in walk(root):
        path = root / found.path
        if path.lstat().st_mtime_ns != _TIME[1]:
            os.utime(path, ns=_TIME, follow_symlinks=False)
    os.utime(root, ns=_TIME)


def _entry(folder: Path, found: Found) -> Entry:
    if found.kind == "other":
        facts = (folder / found.path).lstat()
        if not stat.S_ISCHR(facts.st_mode) or facts.st_rdev != 0:
            raise StoreError("is a device", where=found.path)
        return Entry(found.path, "gone")
    return Entry(found.path, found.kind, found.executable, found.size, "", found.target)


def _write(root: Path, members: Members, size: int) -> str:
    """Write the members below the new folder `root`; returns the diff ID of their tar."""
    hashing = _Hashing()
    tree = _Tree(root, size)
    try:
        tree.write(members, hashing.take)
        return f"sha256:{hashing.hexdigest()}"
    finally:
        tree.close()
        hashing.close()


class _Hashing:
    """sha256 on a thread of its own: hashlib lets go of the interpreter lock, so it runs beside the writing."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._batch: list[bytes] = []
        self._size = 0
        self._queue: queue.Queue[bytes] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None

    def take(self, data: bytes) -> None:
        self._batch.append(data)
        self._size += len(data)
        if self._size >= _BATCH:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True)
                self._thread.start()
            self._queue.put(b"".join(self._batch))
            self._batch.clear()
            self._size = 0

    def hexdigest(self) -> str:
        """Of all that was taken. Ends the taking."""
        self.close()
        for data in self._batch:
            self._hasher.update(data)
        return self._hasher.hexdigest()

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(b"")
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while data := self._queue.get():
            self._hasher.update(data)


class _Tree:
    """A tree being written. Every path is made relative to the descriptor of its folder; no symlink is ever followed."""

    def __init__(self, root: Path, size: int) -> None:
        self._root = root
        self._size = size
        """Bytes in all, as far as known."""
        root.mkdir()
        self._fds = {"": os.open(root, _FOLDER)}
        os.fchmod(self._fds[""], 0o755)
        self._made = [""]

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def write(self, members: Members, take: Callable[[bytes], None]) -> None:
        """One pass: the bytes that `image.tar.write` would give go to `take`, what they mean to the disk."""
        path, last, done = "", b"", 0
        try:
            for entry, chunks in members:
                path = entry.path
                key = path.encode()
                if key <= last:
                    raise BuildError("comes twice or out of order in its layer", where=path)
                last = key
                take(tar.header(entry))
                parent, _, name = path.rpartition("/")
                if name in ("", ".", "..") or len(key) > _LONGEST or "\0" in path + entry.target:
                    raise BuildError("is no path inside a layer", where=repr(path))
                fd = self._fds.get(parent)
                if fd is None:
                    fd = self._folder(parent)
                if entry.kind == "file":
                    done += entry.size
                    self._file(entry, chunks, name, fd, take)
                elif entry.kind == "dir":
                    os.mkdir(name, dir_fd=fd)
                    os.fchmod(self._folder(path), 0o755)
                    self._made.append(path)
                elif entry.kind == "link":
                    os.symlink(entry.target, name, dir_fd=fd)
                    os.utime(name, ns=_TIME, dir_fd=fd, follow_symlinks=False)
                else:
                    _whiteout(path, name, fd)
            take(bytes(2 * tar.BLOCK))
            for path in reversed(self._made):
                os.utime(f"{self._root}/{path}", ns=_TIME, follow_symlinks=False)
        except OSError as error:
            with room(self._root.parent, max(self._size, done)):
                raise _explained(error, path) from None

    def _file(self, entry: Entry, chunks: Iterable[bytes], name: str, folder: int, take: Callable[[bytes], None]) -> None:
        left = entry.size
        fd = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    break
                take(chunk)
                written = os.write(fd, chunk)
                while written < len(chunk):
                    written += os.write(fd, memoryview(chunk)[written:])
            if left:
                had = f"{entry.size - left}" if left > 0 else "more"
                raise ArtifactError(
                    f"has {had} bytes where {entry.size} were expected",
                    where=entry.path,
                    hint="it changed while it was being read; try again",
                )
            os.fchmod(fd, 0o755 if entry.executable else 0o644)  # whatever the umask
            os.utime(fd, ns=_TIME)
        finally:
            os.close(fd)
        if rest := -entry.size % tar.BLOCK:
            take(bytes(rest))

    def _folder(self, path: str) -> int:
        """A descriptor of a folder that was made before. The latest are kept open."""
        parts = path.split("/")
        if len(parts) > _DEEPEST:
            raise BuildError("lies too deep", where=path)
        depth = len(parts)
        while depth and "/".join(parts[:depth]) not in self._fds:
            depth -= 1
        fd = self._fds["/".join(parts[:depth])]
        for below in range(depth, len(parts)):
            if parts[below] in ("", ".", ".."):
                raise BuildError("is no path inside a layer", where=repr(path))
            fd = os.open(parts[below], _FOLDER, dir_fd=fd)
            self._fds["/".join(parts[: below + 1])] = fd
        while len(self._fds) > _OPEN_FOLDERS:
            oldest = next(one for one in self._fds if one and self._fds[one] != fd)
            os.close(self._fds.pop(oldest))
        return fd


def _whiteout(path: str, name: str, folder: int) -> None:
    """overlayfs hides a path of the lower layers behind a character device 0:0."""
    try:
        os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=folder)
    except PermissionError as error:
        raise StoreError(
            f"cannot make a whiteout (a character device 0:0): {error.strerror}",
            where=path,
            hint="it takes Linux 5.8 or later, or root; or put the store on a local file system with REPRO_ENV_STORE",
        ) from None
    os.utime(name, ns=_TIME, dir_fd=folder, follow_symlinks=False)


def _explained(error: OSError, path: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    if error.errno in (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return BuildError("does not lie in a folder of its own layer, comes twice, or is a symlink to nothing", where=path)
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
        return BuildError(f"is a path that this file system cannot hold: {error.strerror}", where=path)
    return StoreError(f"cannot be written: {error.strerror}", where=path)
