"""Unpacked layers: `layers/<hex of diff ID>/` is the tree of a layer. An existing directory is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import takewhile
from pathlib import Path

from repro_env.io.files import FileContents, Found, locked, room, walk
from repro_env.oci import layer, tar
from repro_env.oci.entry import Entry, Members, members
from repro_env.schema.errors import BuildError, ReproEnvError, StoreError
from repro_env.store.bootmarks import Boot
from repro_env.store.filenames import hex_of
from repro_env.store.temporary import Temp

_TIME = (tar.MTIME * 10**9, tar.MTIME * 10**9)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 4000
_DEEPEST = 200


class Layers:
    """Unpacked layers, by diff ID."""

    def __init__(self, store: Path, *, temp: Temp, boot: Boot) -> None:
        self._store = store
        self._root = store / "layers"
        self._temp = temp
        self._boot = boot
        self._checked: dict[str, str] = {}
        """Layers whose times this process has checked, and their newest change of an inode."""

    def path(self, diff_id: str) -> Path | None:
        """Return the tree of a layer, or None. Its files belong to the user and have mode 0644 or 0755 and time `tar.MTIME`.

        The complete layer is read once after each start of the machine, because it may have lost power before everything
        was on the disk, and after any inode changed (ctime), which a program that sets the times back cannot hide. Otherwise, each
        process reads only the times of all files, once. A damaged layer counts as missing.
        """
        name = hex_of(diff_id)
        directory = self._root / name
        if not directory.is_dir():
            return None
        with contextlib.suppress(OSError):
            newest = self._checked.get(name) or _newest(str(directory))
            if newest and self._boot.is_marked(name, newest):
                self._checked[name] = newest
                return directory
        with self._locked(name):
            if not directory.is_dir() or not self.verify(diff_id):
                self.discard(name)
                return None
            _set_times(directory)  # runs see them
            self.mark(diff_id)
        return directory

    def mark(self, diff_id: str) -> None:
        """Record the inodes of a checked layer as they are now, also after hard links to its files were made."""
        self._mark(hex_of(diff_id), _newest(str(self._root / hex_of(diff_id))))

    def _mark(self, name: str, newest: str) -> None:
        self._checked[name] = newest
        self._boot.mark(name, newest)

    def _locked(self, name: str) -> AbstractContextManager[None]:
        return locked(self._store / "locks" / name)

    def discard(self, diff_id: str) -> None:
        """Move a damaged layer out of the way. A run that uses it continues with it; the next run gets a new one.

        Trees of links are moved too, because they share the files of layers. Garbage collection removes them.
        """
        (self._store / "damaged").mkdir(mode=0o700, exist_ok=True)
        for path in (self._root / hex_of(diff_id), *(self._store / "merged").glob("[0-9a-f]*[0-9a-f]")):
            with contextlib.suppress(FileNotFoundError):
                path.rename(self._store / "damaged" / f"{path.name}.{secrets.token_hex(4)}")

    def unpack(self, diff_id: str, members: Members, *, size: int = 0) -> Path:
        """Return the tree of a layer. If it is missing, it is written from the members. `size`: of the tar, for messages.

        Raises `BuildError` if the members do not have this diff ID or would leave the directory, `DiskError` if the disk
        is full, `ArtifactError` if a content does not have the size of its entry. Then nothing is left behind.
        """
        name = hex_of(diff_id)
        if found := self.path(diff_id):
            return found
        with room(self._root, size), self._locked(name), self._temp.directory() as temporary:
            if (self._root / name).is_dir():
                return self._root / name  # another process unpacked it meanwhile
            actual, newest = _write(temporary / "tree", members, size)
            layer.check_diff_id(actual, f"sha256:{name}")
            return self._keep(temporary / "tree", name, newest)

    def add(self, members: Members) -> str:
        """Write a tree whose diff ID is unknown, and return the diff ID. Raises as `unpack`."""
        with room(self._root), self._temp.directory() as temporary:
            diff_id, newest = _write(temporary / "tree", members, 0)
            name = hex_of(diff_id)
            with self._locked(name):
                if not (self._root / name).is_dir():
                    self._keep(temporary / "tree", name, newest)
        return diff_id

    def members(self, diff_id: str) -> Members:
        """Yield the members of a tree on disk, as in its tar, without a check. Raises `OSError`, `StoreError`, `ArtifactError`."""
        directory = self._root / hex_of(diff_id)
        entries = sorted((entry(directory, found) for found in walk(directory)), key=lambda item: item.key)
        yield from members(entries, FileContents(directory))

    def verify(self, diff_id: str) -> bool:
        """Read the complete tree and return whether it still has this diff ID."""
        try:
            return layer.diff_id(self.members(diff_id)) == f"sha256:{hex_of(diff_id)}"
        except (ReproEnvError, OSError):
            return False

    def _keep(self, tree: Path, name: str, newest: str) -> Path:
        self._mark(name, newest)
        try:
            tree.rename(self._root / name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise  # else another machine was faster, and NFS did not show its directory yet (nfs(5), "lookupcache")
        return self._root / name


def _newest(directory: str) -> str:
    """Return the newest change of an inode below a layer's root; empty if a path has not the time that it got when written.

    A rename changes the inode of the root itself. A later write changes the times of a path, and only its mtime can be set back.
    """
    if os.stat(directory).st_mtime_ns != _TIME[1]:  # noqa: PTH116 - a path object takes longer
        return ""
    newest = 0
    directories = [directory]
    for path in directories:  # grows
        fd = os.open(path, _DIRECTORY)  # below it, the kernel does not look up the path again for each file
        try:
            with os.scandir(fd) as listing:
                for item in listing:
                    facts = item.stat(follow_symlinks=False)
                    if facts.st_mtime_ns != _TIME[1]:
                        return ""
                    newest = max(newest, facts.st_ctime_ns)
                    if item.is_dir(follow_symlinks=False):
                        directories.append(f"{path}/{item.name}")
        finally:
            os.close(fd)
    return str(newest)


def _set_times(root: Path) -> None:
    for found in walk(root):
        path = root / found.path
        if path.lstat().st_mtime_ns != _TIME[1]:
            os.utime(path, ns=_TIME, follow_symlinks=False)
    os.utime(root, ns=_TIME)


def entry(directory: Path, found: Found) -> Entry:
    """Return a path of an unpacked layer as an entry: a character device 0:0 removes the path of a lower layer (overlayfs).

    Raises `StoreError` for any other device, which the store does not contain.
    """
    if found.kind == "other":
        facts = (directory / found.path).lstat()
        if not stat.S_ISCHR(facts.st_mode) or facts.st_rdev != 0:
            raise StoreError("the layer contains a device", where=found.path)
        return Entry(found.path, "gone")
    return Entry(found.path, found.kind, found.executable, found.size, target=found.target)


def _write(root: Path, members: Members, size: int) -> tuple[str, str]:
    """Write the members below the new directory `root`. Returns the diff ID of their tar, and what `_newest` returns for the tree.

    `size`: in bytes, if it is known.
    """
    tree = _Tree(root)
    try:
        return layer.diff_id(tree.write(members)), tree.newest
    except OSError as error:
        with room(root.parent, size):
            raise _convert_error(error, tree.path) from None
    finally:
        tree.close()


class _Tree:
    """Writes a tree. Every path is created relative to the descriptor of its directory, so no symlink is followed."""

    def __init__(self, root: Path) -> None:
        self.path = ""
        """The path that is being written, for messages."""
        self.newest = "0"
        """The newest change of an inode below the root, at the end: that of the path whose times were set last."""
        self._root = root
        root.mkdir()
        self._names: list[str] = []
        self._fds = [os.open(root, _DIRECTORY)]
        """The descriptors of the root and of each directory of the path `_names`."""
        os.fchmod(self._fds[0], 0o755)
        self._made = [""]
        self._sets_modes = _sets_modes(self._fds[0])

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def write(self, members: Members) -> Members:
        """Yield the members unchanged, and write each one. The content of a file is written while it is read."""
        last_key = b""
        for entry, chunks in members:
            path = self.path = entry.path
            key = path.encode()
            if key <= last_key:
                raise BuildError("the path occurs twice or out of order in its layer", where=path)
            last_key = key
            parent, _, name = path.rpartition("/")
            if name in ("", ".", "..") or len(key) > _LONGEST or "\0" in path + entry.target:
                raise BuildError("the path is not a valid path inside a layer", where=repr(path))
            fd = self._directory(parent)
            if entry.kind == "file":
                yield entry, _file(entry, chunks, name, fd, self._sets_modes)
                continue
            if entry.kind == "dir":
                os.mkdir(name, 0o755, dir_fd=fd)
                if self._sets_modes:
                    os.fchmod(self._directory(path), 0o755)
                self._made.append(path)
            elif entry.kind == "link":
                os.symlink(entry.target, name, dir_fd=fd)
                os.utime(name, ns=_TIME, dir_fd=fd, follow_symlinks=False)
            else:
                _whiteout(path, name, fd)
            yield entry, ()
        for path in reversed(self._made[1:]):
            os.utime(f"{self._root}/{path}", ns=_TIME, follow_symlinks=False)
        if self.path:
            last = (self._made[1:] or [self.path])[0]
            self.newest = str(os.lstat(f"{self._root}/{last}").st_ctime_ns)
        os.utime(self._root, ns=_TIME)

    def _directory(self, path: str) -> int:
        """Return the descriptor of an existing directory. It stays open, with those above it, until another one is needed."""
        names = path.split("/") if path else []
        if len(names) > _DEEPEST:
            raise BuildError("the path has too many levels", where=path)
        if names != self._names:
            equal = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(names, self._names, strict=False))))
            while len(self._fds) > equal + 1:
                os.close(self._fds.pop())
            for name in names[equal:]:
                if name in ("", ".", ".."):
                    raise BuildError("the path is not a valid path inside a layer", where=repr(path))
                self._fds.append(os.open(name, _DIRECTORY, dir_fd=self._fds[-1]))
            self._names = names
        return self._fds[-1]


def _sets_modes(directory: int) -> bool:
    """Return whether new paths get other modes than asked for: because of the umask, a default ACL, or the file system."""
    os.mkdir(".mode", 0o755, dir_fd=directory)
    try:
        return stat.S_IMODE(os.stat(".mode", dir_fd=directory).st_mode) != 0o755
    finally:
        os.rmdir(".mode", dir_fd=directory)


def _file(entry: Entry, chunks: Iterable[bytes], name: str, directory: int, sets_mode: bool) -> Iterator[bytes]:
    """Yield the chunks unchanged, and write them to a new file."""
    mode = 0o755 if entry.executable else 0o644
    fd = os.open(name, _NEW, mode, dir_fd=directory)
    try:
        for chunk in chunks:
            unwritten = memoryview(chunk)
            while unwritten:
                unwritten = unwritten[os.write(fd, unwritten) :]
            yield chunk
        if sets_mode:
            os.fchmod(fd, mode)
        os.utime(fd, ns=_TIME)
    finally:
        os.close(fd)


def _whiteout(path: str, name: str, directory: int) -> None:
    """Create a character device 0:0, with which overlayfs hides a path of lower layers."""
    try:
        os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=directory)
    except PermissionError as error:
        raise StoreError(
            f"a whiteout (character device 0:0) cannot be created: {error.strerror}",
            where=path,
            hint="use Linux 5.8 or later, or root, or set REPRO_ENV_STORE to a directory on a local file system",
        ) from None
    os.utime(name, ns=_TIME, dir_fd=directory, follow_symlinks=False)


def _convert_error(error: OSError, path: str) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error
    if error.errno in (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return BuildError("the path is not in a directory of its own layer, occurs twice, or is below a symlink", where=path)
    if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
        return BuildError(f"the file system cannot store the path: {error.strerror}", where=path)
    return StoreError(f"the path cannot be written: {error.strerror}", where=path)
