"""What a run wrote outside its project: kept in the run's `outside/` by absolute path, up to a bound.

Not kept are temporary files, caches and bytecode (`Rules`), what the image has there already, empty directories, and what
holds no bytes (pipes, sockets). Everything here was written by the run and is untrusted: no symlink is followed, and only regular files are opened.
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

from repro_env.catalog.outputs import OUTSIDE
from repro_env.image import layout
from repro_env.io.files import atomic_write, read_regular, remove_tree
from repro_env.model import redact
from repro_env.model.codec import Frozen
from repro_env.model.run import Launch, Lost
from repro_env.run import rootfs, workspace

_OLD = ".outside"
_RULES = ".outside.json"
"""In a run's folder, until `outside` holds only what is kept: the upper side while it is sorted, and its rules."""
_MOST_RULES = 16 << 20
"""Bytes."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108
_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/.dockerenv", "/etc/mtab", posixpath.dirname(layout.SEEDS))
"""Of the kernel, of engines, and our own."""
_CACHES = (".cache", ".nv", ".triton", ".bash_history", ".python_history")
"""In HOME: what programs make again, and what was typed."""
_NAMED = 100


class Bound(Frozen, frozen=True):
    """The most that is kept of one run."""

    size: int = 16 << 30
    """Bytes, as `stat` has them: a sparse file counts as the bytes that it seems to have."""
    files: int = 100_000


DEFAULT, ALL = Bound(), Bound(1 << 62, 1 << 62)


class Source(msgspec.Struct, frozen=True):
    """A directory of this machine that held what the run wrote below a path."""

    at: str
    """Inside the run."""
    folder: Path
    is_covered: bool = False
    """Everything that the image has there was mounted in it, so what is named as in the image is a mount point."""


class Written(msgspec.Struct, frozen=True):
    path: str
    """Inside the run; absolute."""
    file: str
    """On this machine."""
    size: int


class Unkept(msgspec.Struct, frozen=True):
    """What is lost, and why."""

    file: Written
    why: str


class Rules(Frozen, frozen=True, kw_only=True):
    """Which paths inside a run hold nothing to keep."""

    mounted: tuple[str, ...]
    """Where something else was mounted, and the files that every run has of its own."""
    kept: tuple[str, ...]
    """The directory that holds the project's, and HOME: what is below them is kept even where they are below `TEMPORARY`."""
    caches: tuple[str, ...]

    def skip(self, path: str) -> bool:
        """Whether a path and all below it are left out: mounts, caches, bytecode, and temporary files.

        Files beside the project and in HOME are not temporary, wherever these are.
        """
        if path.endswith("/__pycache__") or path in self.mounted or path in self.caches:
            return True
        for folder in TEMPORARY:
            if path.startswith(folder + "/"):
                near = [kept for kept in self.kept if _is_below(kept, folder)]
                return not any(_is_below(kept, path) or _is_below(path, kept) for kept in near)
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


def begin(folder: Path, rules: Rules) -> Path:
    """Make an empty `outside/` in the run's `folder` for an upper side, so that what it holds outlives a kill. Returns it."""
    target = folder / OUTSIDE
    drop(folder)
    atomic_write(folder / _RULES, msgspec.json.encode(rules), flush=False)
    target.mkdir(0o755)
    return target


def drop(folder: Path) -> None:
    """Take away what `begin` made: the command was not started."""
    remove_tree(folder / OUTSIDE)
    (folder / _RULES).unlink(missing_ok=True)


def settle(folder: Path, image: Sequence[Path] = ()) -> None:
    """Leave in `outside/` only what is kept, for a run that was killed before it could do so. `image` as of `keep`. Raises `OSError`."""
    try:
        rules = msgspec.json.decode(read_regular(folder / _RULES, _MOST_RULES), type=Rules)
    except FileNotFoundError:
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OSError(errno.EINVAL, "it does not say what to keep", str(folder / _RULES)) from None
    keep(folder, [Source("/", folder / OUTSIDE)], rules, image, Bound())


def keep(
    folder: Path,
    sources: Sequence[Source],
    rules: Rules,
    image: Sequence[Path],
    bound: Bound,
    unkept: Sequence[Unkept] = (),
) -> Lost | None:
    """Fill `outside/` of the run's `folder` from `sources`, of which it may be one itself. The command is over.

    `image`: its unpacked layers, the lowest first, and what else was there before the command started. The smallest files come first, so that the most of them are kept. What a
    run wrote raises no error: what cannot be kept is in the answer, with what is in `unkept` already.
    """
    lost = list(unkept)
    try:
        _keep(folder, sources, rules, image, bound, lost)
    except OSError as error:
        lost.append(Unkept(Written("/", "", 0), str(error)))
    return _summary(lost)


def _keep(folder: Path, sources: Sequence[Source], rules: Rules, image: Sequence[Path], bound: Bound, lost: list[Unkept]) -> None:
    target, old = folder / OUTSIDE, folder / _OLD
    if any(source.folder == target for source in sources):
        remove_tree(old)
        target.rename(old)
        sources = [msgspec.structs.replace(source, folder=old) if source.folder == target else source for source in sources]
    written: list[Written] = []
    for source in sources:
        written += _written(source, rules, image, lost)
    written.sort(key=lambda file: (file.size, file.path))
    size = 0
    for number, file in enumerate(written):
        size += file.size
        if size > bound.size or number >= bound.files:
            lost.append(Unkept(file, "over the bound"))
        elif why := _move(file, target):
            lost.append(Unkept(file, why))
    remove_tree(old)
    (folder / _RULES).unlink(missing_ok=True)


def _summary(lost: Sequence[Unkept]) -> Lost | None:
    if not lost:
        return None
    largest = sorted(lost, key=lambda each: (-each.file.size, each.file.path))[:_NAMED]
    return Lost(
        files=len(lost),
        size=sum(each.file.size for each in lost),
        largest=tuple(redact.line(f"{each.file.path} ({each.file.size} bytes, {each.why})") for each in largest),
    )


def _written(source: Source, rules: Rules, image: Sequence[Path], lost: list[Unkept]) -> Iterator[Written]:
    """The files and symlinks below a source that are the run's own; what cannot be looked at goes to `lost`."""
    folders = [(str(source.folder), source.at.rstrip("/"))]
    device = -1
    while folders:
        here, at = folders.pop()
        try:
            facts = os.lstat(here) if device != -1 else os.stat(here)  # noqa: PTH116
            if device == -1:
                device = facts.st_dev
            elif facts.st_dev != device:  # something else was mounted there
                continue
            if facts.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(here, stat.S_IMODE(facts.st_mode) | stat.S_IRWXU)  # noqa: PTH101
            with os.scandir(here) as listing:
                items = sorted(listing, key=lambda item: item.name)
        except OSError as error:
            lost.append(Unkept(Written(at or "/", here, 0), error.strerror or ""))
            continue
        for item in items:
            path = f"{at}/{item.name}"
            if rules.skip(path):
                continue
            try:
                facts = item.stat(follow_symlinks=False)
            except OSError as error:
                lost.append(Unkept(Written(path, item.path, 0), error.strerror or ""))
                continue
            kind = stat.S_IFMT(facts.st_mode)
            if kind == stat.S_IFDIR:
                folders.append((item.path, path))
            elif kind not in (stat.S_IFREG, stat.S_IFLNK) or facts.st_dev != device:
                continue
            elif not _is_of_image(Path(item.path), path, image, source):
                yield Written(path, item.path, facts.st_size if kind == stat.S_IFREG else 0)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _is_of_image(file: Path, path: str, image: Sequence[Path], source: Source) -> bool:
    """Whether the image has this very file: it was only opened for writing, or is a mount point."""
    for tree in reversed(image):
        below = Path(f"{tree}{path}")
        with contextlib.suppress(OSError):
            if os.path.lexists(below):
                return source.is_covered or workspace.is_same(file, below)
    return False


def _move(file: Written, target: Path) -> str:
    """Take a file or symlink into `target`. Returns why that failed; empty if it did not."""
    here = Path(f"{target}{file.path}")
    source = Path(file.file)
    try:
        here.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(here)
        except OSError:  # another file system
            if source.is_symlink():
                here.symlink_to(source.readlink())
            else:
                workspace.copy_file(source, here)
        if not here.is_symlink():
            workspace.disarm(here)
    except OSError as error:
        return error.strerror or "it cannot be read"
    return ""
