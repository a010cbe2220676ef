"""Keep the files that a run wrote outside its project in the run's `outside/`, by absolute path and up to a bound.

Temporary files, caches and bytecode (`Rules`), unchanged files of the image, empty directories, pipes and sockets are not kept.
The files are untrusted, because the run wrote them: no symlink is followed, and only regular files are opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import atomic_write, read_regular, remove_tree
from repro_env.oci import paths
from repro_env.oci.paths import is_below
from repro_env.sandbox import workspace
from repro_env.sandbox.embedded import rootfs
from repro_env.sandbox.outputs import OUTSIDE
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.run import Launch, Lost

_OLD = ".outside"
_RULES = ".outside.json"
"""In a run's directory, until `outside` is complete: the overlay's upper layer, and the rules for it."""
_MAX_RULES = 16 << 20
"""Bytes that are read of the rules."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108
_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/.dockerenv", "/etc/mtab", posixpath.dirname(paths.SEEDS))
"""Paths of the kernel, of engines and of this tool."""
_CACHES = (".cache", ".nv", ".triton", ".bash_history", ".python_history")
"""Caches and histories in HOME."""
_MAX_NAMES = 100
"""How many lost files are listed by name."""


class Bound(Frozen, frozen=True):
    """How much is kept of one run at most."""

    size: int = 16 << 30
    """Bytes. A sparse file counts with its apparent size."""
    files: int = 100_000


DEFAULT, ALL = Bound(), Bound(1 << 62, 1 << 62)


class Source(msgspec.Struct, frozen=True):
    """A directory of this machine with the files that the run wrote below a path."""

    at: str
    """The path inside the run."""
    directory: Path
    is_covered: bool = False
    """Whether the image's files were mounted in it. Then a file with the name of an image's file is just a mount point."""


class WrittenFile(msgspec.Struct, frozen=True):
    path: str
    """The absolute path inside the run."""
    file: str
    """The path on this machine."""
    size: int


class LostFile(msgspec.Struct, frozen=True):
    """A file that was not kept, and why."""

    path: str
    size: int
    why: str


class Rules(Frozen, frozen=True, kw_only=True):
    """Which paths inside a run are not kept."""

    mounted: tuple[str, ...]
    """Paths of mounts, and files that every run has."""
    kept: tuple[str, ...]
    """The parent directory of the project, and HOME. Files below them are kept even if these are below `TEMPORARY`."""
    caches: tuple[str, ...]

    def skip(self, path: str) -> bool:
        """Whether a path and all paths below it are not kept: mounts, caches, bytecode, and temporary files.

        Files in HOME or next to the project are not temporary, even if these are below `TEMPORARY`.
        """
        if path.endswith("/__pycache__") or path in self.mounted or path in self.caches:
            return True
        for directory in TEMPORARY:
            if path.startswith(directory + "/"):
                exceptions = [kept for kept in self.kept if is_below(kept, directory)]
                return not any(is_below(kept, path) or is_below(path, kept) for kept in exceptions)
        return False


def rules_of(launch: Launch) -> Rules:
    """The rules for a run. Pure."""
    mounts = (*(mount.target for mount in launch.mounts), *(tree.target for tree in launch.trees))
    caches = [f"{launch.user.home}/{name}" for name in _CACHES]
    return Rules(
        mounted=tuple(sorted({launch.workspace, *mounts, *_SYSTEM, *(f"/etc/{name}" for name in rootfs.ETC)})),
        kept=(launch.workspace.rpartition("/")[0], *({launch.user.home} - {*TEMPORARY})),
        caches=(*caches, *(variable.value.rstrip("/") for variable in launch.env if variable.name == "XDG_CACHE_HOME")),
    )


def begin(directory: Path, rules: Rules) -> Path:
    """Make an empty `outside/` in the run's `directory`. Used as an upper layer, its files survive a kill. Returns its path."""
    target = directory / OUTSIDE
    drop(directory)
    atomic_write(directory / _RULES, msgspec.json.encode(rules), flush=False)
    target.mkdir(0o755)
    return target


def drop(directory: Path) -> None:
    """Remove what `begin` made, because the command was not started."""
    remove_tree(directory / OUTSIDE)
    (directory / _RULES).unlink(missing_ok=True)


def settle(directory: Path, image: Sequence[Path] = ()) -> None:
    """Do what `keep` does, for a run that was killed before it could do so. Raises `OSError`."""
    try:
        rules = msgspec.json.decode(read_regular(directory / _RULES, _MAX_RULES), type=Rules)
    except FileNotFoundError:
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OSError(
            errno.EINVAL, "this file is damaged: it does not contain the rules for `outside`", str(directory / _RULES)
        ) from None
    keep(directory, [Source("/", directory / OUTSIDE)], rules, image, Bound())


def keep(directory: Path, sources: Sequence[Source], rules: Rules, image: Sequence[Path], bound: Bound) -> Lost | None:
    """Move files from `sources` to `outside/` in the run's `directory`, which may be one of the sources. The command has ended.

    `image` are all trees that the command started with, the lowest first: unpacked layers and siblings. The smallest files
    are kept first, so that as many as possible are kept. Returns the files that were not kept, and never raises because of what
    the run wrote.
    """
    lost: list[LostFile] = []
    try:
        _keep(directory, sources, rules, image, bound, lost)
    except OSError as error:
        lost.append(LostFile("/", 0, str(error)))
    return _summary(lost)


def _keep(
    directory: Path, sources: Sequence[Source], rules: Rules, image: Sequence[Path], bound: Bound, lost: list[LostFile]
) -> None:
    target, old = directory / OUTSIDE, directory / _OLD
    if any(source.directory == target for source in sources):
        remove_tree(old)
        target.rename(old)
        sources = [msgspec.structs.replace(source, directory=old) if source.directory == target else source for source in sources]
    files: list[WrittenFile] = []
    for source in sources:
        files += _written_files(source, rules, image, lost)
    files.sort(key=lambda file: (file.size, file.path))
    size = 0
    for number, file in enumerate(files):
        size += file.size
        if size > bound.size or number >= bound.files:
            lost.append(LostFile(file.path, file.size, "over the bound"))
        elif why := _move(file, target):
            lost.append(LostFile(file.path, file.size, why))
    remove_tree(old)
    (directory / _RULES).unlink(missing_ok=True)


def _summary(lost: Sequence[LostFile]) -> Lost | None:
    if not lost:
        return None
    largest = sorted(lost, key=lambda file: (-file.size, file.path))[:_MAX_NAMES]
    return Lost(
        files=len(lost),
        size=sum(file.size for file in lost),
        largest=tuple(redact.line(f"{file.path} ({file.size} bytes, {file.why})") for file in largest),
    )


def _written_files(source: Source, rules: Rules, image: Sequence[Path], lost: list[LostFile]) -> Iterator[WrittenFile]:
    """Yield the files and symlinks below a source that the run wrote. Unreadable paths are added to `lost`."""
    directories = [(str(source.directory), source.at.rstrip("/"))]
    device = -1
    while directories:
        directory, at = directories.pop()
        try:
            facts = os.lstat(directory) if device != -1 else os.stat(directory)  # noqa: PTH116
            if device == -1:
                device = facts.st_dev
            elif facts.st_dev != device:  # a mount
                continue
            if facts.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(directory, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU)  # noqa: PTH101
            with os.scandir(directory) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except OSError as error:
            lost.append(LostFile(at or "/", 0, error.strerror or ""))
            continue
        for item in items:
            path = f"{at}/{item.name}"
            if rules.skip(path):
                continue
            try:
                facts = item.stat(follow_symlinks=False)
            except OSError as error:
                lost.append(LostFile(path, 0, error.strerror or ""))
                continue
            kind = stat.S_IFMT(facts.st_mode)
            if kind == stat.S_IFDIR:
                directories.append((item.path, path))
            elif kind not in (stat.S_IFREG, stat.S_IFLNK) or facts.st_dev != device:
                continue
            elif not _is_of_image(Path(item.path), path, image, source):
                yield WrittenFile(path, item.path, facts.st_size if kind == stat.S_IFREG else 0)


def _is_of_image(file: Path, path: str, image: Sequence[Path], source: Source) -> bool:
    """Whether the image has the same file: the command only opened it for writing, or it is a mount point."""
    for tree in reversed(image):
        original = Path(f"{tree}{path}")
        with contextlib.suppress(OSError):
            if os.path.lexists(original):
                return source.is_covered or workspace.is_same(file, original)
    return False


def _move(file: WrittenFile, directory: Path) -> str:
    """Move a file or symlink to `directory`. Returns why this failed; empty if it worked."""
    target = Path(f"{directory}{file.path}")
    source = Path(file.file)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(target)
        except OSError:  # on another file system
            if source.is_symlink():
                target.symlink_to(source.readlink())
            else:
                workspace.copy_file(source, target)
        if not target.is_symlink():
            workspace.disarm(target)
    except OSError as error:
        return error.strerror or "it cannot be read"
    return ""
