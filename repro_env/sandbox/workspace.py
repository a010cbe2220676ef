"""The directories that a run writes: `files`, a copy of its source, and `outside`, for all other paths, by absolute path.

Every runner prepares them before the command starts, and lets the command write nowhere else. So what it wrote is still there
after a kill. `collect` then removes everything that is not an output. The files are untrusted, because the run wrote them: no
symlink is followed, and only regular files are opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import FileIO
from pathlib import Path

import msgspec

from repro_env.io import files
from repro_env.oci import paths
from repro_env.oci.entry import escape
from repro_env.oci.paths import is_below
from repro_env.schema.codec import Frozen
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import FILES, HOSTS, OPEN, OUTSIDE, SCRATCH

_LONGEST_FILTER = 256 << 20
"""Bytes that are read of the filter."""
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108
ETC = ("passwd", "group", "hosts", "resolv.conf", "hostname", "ld.so.cache")
"""The files of /etc that are made for each run; the last only for one with GPUs."""
_SYSTEM = ("/proc", "/sys", "/dev", "/run", posixpath.dirname(paths.SEEDS), *(f"/etc/{name}" for name in ETC))
_CACHES = (".cache", ".nv", ".triton", ".bash_history", ".python_history", ".ipython", ".local/share/jupyter/runtime")
"""Caches and histories in HOME, and connection files of kernels, which have keys."""
_XATTRS = ("trusted.overlay.", "user.overlay.")
"""Prefixes of overlay's extended attributes in its upper layer: as root, and in a user namespace."""
_CHUNK = 1 << 20
_LONGEST = 4095
"""Bytes of a path that the kernel accepts (PATH_MAX without the final zero)."""


class OutputFilter(Frozen, frozen=True, kw_only=True):
    """Which paths inside a run are not outputs."""

    workspace: str
    mounted: tuple[str, ...]
    """Paths of mounts, and files that every run has."""
    kept: tuple[str, ...]
    """The parent directory of the project, and HOME. Files below them are kept even if these are below `TEMPORARY`."""
    caches: tuple[str, ...]
    times: dict[str, int] = msgspec.field(default_factory=dict)
    """When each file of the source was last modified (ns) when the command started."""

    def skip(self, path: str) -> bool:
        """Whether a path outside the project and all paths below it are not kept: mounts, caches, bytecode, temporary files.

        Files in HOME or next to the project are not temporary, even if these are below `TEMPORARY`.
        """
        if path.endswith("/__pycache__") or path in self.mounted or path in self.caches:
            return True
        for directory in TEMPORARY:
            if path.startswith(directory + "/"):
                exceptions = [kept for kept in self.kept if is_below(kept, directory)]
                return not any(is_below(kept, path) or is_below(path, kept) for kept in exceptions)
        return False


def filter_of(launch: Launch) -> OutputFilter:
    """The filter of a run. Pure."""
    mounts = (*(mount.target for mount in launch.mounts), *(tree.target for tree in launch.trees))
    caches = [f"{launch.user.home}/{name}" for name in _CACHES]
    return OutputFilter(
        workspace=launch.workspace,
        mounted=tuple(sorted({launch.workspace, *mounts, *_SYSTEM})),
        kept=(launch.workspace.rpartition("/")[0], *({launch.user.home} - {*TEMPORARY})),
        caches=(*caches, *(variable.value.rstrip("/") for variable in launch.env if variable.name == "XDG_CACHE_HOME")),
    )


def prepare(launch: Launch, directory: Path, snapshot: Path) -> None:
    """Copy the source to `files` in the run's `directory`, unless another process of the run has done it. Raises `DiskError`."""
    source, host = directory / FILES, launch.member.host_directory(directory)
    is_prepared = not is_collected(directory)
    outputs = filter_of(launch)
    if not is_prepared:
        files.atomic_write(directory / OPEN, msgspec.json.encode(outputs), flush=False)
    with files.room(directory):
        for path in (source, host / OUTSIDE, host / SCRATCH):
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        own = [f"{item.name}={item.value}" for item in launch.env if item.name.startswith(("REPRO_ENV_", "PYTHONHASHSEED"))]
        if own:
            Path(launch.reports, paths.VARIABLES).write_bytes("\0".join(own).encode("utf-8", "surrogateescape"))
        if is_prepared:
            return
        copy_tree(snapshot, source)
        if launch.resumed is not None:
            for name in (FILES, OUTSIDE):
                copy_over(Path(launch.resumed, name), directory / name)
    kinds = {mount.target: Path(mount.source).is_dir() for mount in launch.mounts}
    kinds |= {tree.target: not tree.root.startswith(paths.HOME) for tree in launch.trees}
    make_mount_points(source, launch.workspace, kinds)
    outputs = msgspec.structs.replace(outputs, times=_set_times(launch, directory))
    files.atomic_write(directory / OPEN, msgspec.json.encode(outputs), flush=False)


def _set_times(launch: Launch, directory: Path) -> dict[str, int]:
    """Set the times that are in the record. Returns those of the source's files, as the disk keeps them, by path."""
    kept: dict[str, int] = {}
    roots = [(directory / FILES, ""), *([(directory / OUTSIDE, "/")] if launch.resumed is not None else [])]
    for root, prefix in roots:
        for found in files.walk(root) if root.is_dir() else ():  # follows no symlink, whatever the record names
            time = launch.times.get(escape(prefix + found.path))
            if time is None or found.kind not in ("file", "dir"):
                continue
            path = root / found.path
            os.utime(path, ns=(time, time), follow_symlinks=False)
            is_output = prefix or (launch.resumed is not None and os.path.lexists(Path(launch.resumed, FILES, found.path)))
            if found.kind == "file" and not is_output:
                kept[found.path] = path.lstat().st_mtime_ns
    return kept


def make_mount_points(directory: Path, at: str, targets: dict[str, bool]) -> None:
    """Make the mount points below `at`, which is `directory` inside the run. `targets`: path -> whether it is a directory."""
    for target, is_directory in sorted(targets.items()):
        if not target.startswith(at + "/"):
            continue
        parts = target[len(at) + 1 :].split("/")
        for depth in range(1, len(parts) + 1):
            path = directory.joinpath(*parts[:depth])
            if path.is_dir() and not path.is_symlink():
                continue
            if depth < len(parts) or is_directory:
                path.unlink(missing_ok=True)
                path.mkdir(mode=0o755)
            elif not path.exists():
                make_file_point(path)


def make_file_point(path: Path | str) -> None:
    """Make a file to mount another file on. Its mode is 0, so that `collect` does not take it for an output."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0))


def copy_tree(source: Path, target: Path) -> None:
    """Copy directories, files and symlinks into an existing directory, with the files' modes and times."""
    for found in files.walk(source):
        copy = target / found.path
        if found.kind == "dir":
            copy.mkdir()
            copy.chmod(0o755)
        elif found.kind == "link":
            copy.symlink_to(found.target)
        elif found.kind == "file":
            copy_file(source / found.path, copy)


def copy_over(source: Path, target: Path) -> None:
    """Copy the outputs of another run, if there are any, into a directory. They replace what is there; no symlink is followed."""
    if not source.is_dir() or source.is_symlink():
        return
    for found in files.walk(source):
        copy = target / found.path
        is_directory = copy.is_dir() and not copy.is_symlink()
        if is_directory and found.kind != "dir":
            files.remove_tree(copy)
        elif not is_directory:
            copy.unlink(missing_ok=True)
        if found.kind == "dir":
            copy.mkdir(mode=0o755, exist_ok=True)
        elif found.kind == "link":
            copy.symlink_to(found.target)
        elif found.kind == "file":
            copy_file(source / found.path, copy, below=source)


def copy_file(source: Path, target: Path, *, below: Path | None = None) -> None:
    """Copy a regular file with its mode and times. The copy shares blocks with the original if the disk supports it (copy_file_range(2)).

    `below` is as in `io.files.open_regular`. Raises `OSError`.
    """
    handle = files.open_regular(source, below=below)
    with os.fdopen(handle, "rb", buffering=0) as read, target.open("xb", buffering=0) as written:
        facts = os.fstat(read.fileno())
        _copy_bytes(read, written)
        os.fchmod(written.fileno(), stat.S_IMODE(facts.st_mode) | stat.S_IWUSR)
        os.utime(written.fileno(), ns=(facts.st_atime_ns, facts.st_mtime_ns))


def _copy_bytes(source: FileIO, target: FileIO) -> None:
    for start, end in files.data_ranges(source.fileno()):
        for file in (source, target):
            file.seek(start)
        target.truncate(start)  # a hole
        try:
            while source.tell() < end and os.copy_file_range(source.fileno(), target.fileno(), min(_CHUNK, end - source.tell())):
                pass
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
                raise
        while chunk := source.read(min(_CHUNK, end - source.tell())):  # what is missing, if the file system refused
            view = memoryview(chunk)
            while view:
                view = view[target.write(view) :]


def collect(directory: Path, snapshot: Path, image: Iterable[Path] = ()) -> tuple[str, ...]:
    """Leave only outputs in the run's `directory`. Returns the files of the source that the command removed, sorted.

    An output is a regular file or a symlink that differs from the one in the `snapshot` of the source or in the `image`, which
    are all trees that the command started with, the lowest first. Call this after the command has ended, or later for a run
    that was killed. A second call changes nothing. Raises `OSError`.
    """
    try:
        outputs = msgspec.json.decode(files.read_regular(directory / OPEN, _LONGEST_FILTER), type=OutputFilter)
    except FileNotFoundError:
        return ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise OSError(errno.EINVAL, "this file is damaged: it contains no filter of outputs", str(directory / OPEN)) from None
    below = len(outputs.workspace) + 1
    points = {path[below:] for path in outputs.mounted if path.startswith(outputs.workspace + "/")}
    found = _prune(directory / FILES, [snapshot], points.__contains__, outputs.times)
    trees = [*image]
    hosts = sorted((directory / HOSTS).iterdir()) if (directory / HOSTS).is_dir() else []
    for host in hosts or [directory]:
        _prune(host / OUTSIDE, trees, lambda path: outputs.skip(f"/{path}"), {})
        files.remove_tree(host / SCRATCH)
    for host in hosts:
        _merge(host / OUTSIDE, directory / OUTSIDE)
    for path in (*hosts, directory / HOSTS, directory / OUTSIDE):
        with contextlib.suppress(OSError):  # it has outputs
            path.rmdir()
    removed = (file.path for file in files.walk(snapshot) if file.kind != "dir" and file.path not in found)
    result = tuple(path for path in removed if not is_below(path, *points))
    (directory / OPEN).unlink()
    return result


def _merge(source: Path, target: Path) -> None:
    """Move the outputs of a machine to those of the others. A file that differs from the one with the same path stays."""
    if not os.path.lexists(target):
        source.rename(target)
    elif all(path.is_dir() and not path.is_symlink() for path in (source, target)):
        with os.scandir(source) as listing:
            names = [item.name for item in listing]
        for name in names:
            _merge(source / name, target / name)
        with contextlib.suppress(OSError):  # a file stays
            source.rmdir()
    elif _are_equal(source, target):
        source.unlink()


def _are_equal(left: Path, right: Path) -> bool:
    if left.is_symlink() and right.is_symlink():
        return left.readlink() == right.readlink()
    try:
        return files.sha256_of(left) == files.sha256_of(right)
    except OSError:  # one of them is not a regular file
        return False


def is_collected(directory: Path) -> bool:
    """Whether the run's `directory` has only outputs, because `collect` is done."""
    return not (directory / OPEN).exists()


def _prune(root: Path, originals: Sequence[Path], skip: Callable[[str], bool], times: Mapping[str, int]) -> set[str]:
    """Remove everything but files and symlinks that differ from the originals. Returns the paths of all that were there.

    `times`: of the originals, where they differ from those on disk. The directories that stay keep their times.
    """
    files.expect(root.lstat().st_mode, stat.S_IFDIR, str(root))
    found: set[str] = set()
    prefixes = [""]
    directory_times: list[tuple[int, int]] = []
    for prefix in prefixes:  # grows
        directory = root / prefix
        if len(os.fsencode(directory)) > _LONGEST:  # stays, and is recorded by name
            continue
        facts = directory.stat()
        mode = facts.st_mode
        directory_times.append((facts.st_atime_ns, facts.st_mtime_ns))
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            directory.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
        _remove_attributes(directory)
        with os.scandir(directory) as listing:
            items = list(listing)
        for item in items:
            path, location = prefix + item.name, Path(item.path)
            if len(os.fsencode(item.path)) > _LONGEST:
                found.add(path)
            elif item.is_dir(follow_symlinks=False):
                if skip(path):
                    files.remove_tree(location)
                else:
                    prefixes.append(path + "/")
            else:
                found.add(path)
                if skip(path) or not _is_output(location, path, originals, times.get(path)):
                    location.unlink()
    for prefix, time in reversed([*zip(prefixes, directory_times, strict=True)][1:]):
        with contextlib.suppress(OSError):  # it has outputs
            (root / prefix).rmdir()
            continue
        os.utime(root / prefix, ns=time)
    return found


def _is_output(file: Path, path: str, originals: Sequence[Path], time: int | None) -> bool:
    facts = file.lstat()
    if stat.S_ISREG(facts.st_mode):
        if not facts.st_size and not stat.S_IMODE(facts.st_mode):  # `make_file_point` made it
            return False
        _remove_attributes(file)
        if facts.st_mode & (stat.S_ISUID | stat.S_ISGID):
            file.chmod(stat.S_IMODE(facts.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
    elif not stat.S_ISLNK(facts.st_mode):
        return False
    original = next((tree / path for tree in reversed(originals) if os.path.lexists(tree / path)), None)
    return original is None or not _is_same(file, original, time)


def _remove_attributes(path: Path) -> None:
    """Remove overlay's attributes from a file or directory."""
    with contextlib.suppress(OSError):  # the file system does not support extended attributes
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_XATTRS):
                os.removexattr(path, name, follow_symlinks=False)


def _is_same(path: Path, original: Path, time: int | None) -> bool:
    """Whether a path is unchanged from `original`: a symlink by its target, a file by time, executable bit and bytes.

    The time counts because a file that a run writes is an output, even if its bytes are the same as before. `time`: what a
    copy of the original got, after it was copied.
    """
    old, new = original.lstat(), path.lstat()
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        return False
    if stat.S_ISLNK(new.st_mode):
        return path.readlink() == original.readlink()
    has_same_mode = (new.st_mode ^ old.st_mode) & stat.S_IXUSR == 0
    if new.st_size != old.st_size or new.st_mtime_ns not in (old.st_mtime_ns, time) or not has_same_mode:
        return False
    if not new.st_mode & stat.S_IRUSR:
        path.chmod(stat.S_IMODE(new.st_mode) | stat.S_IRUSR)
    with path.open("rb", buffering=0) as new_file, original.open("rb", buffering=0) as old_file:
        while True:
            chunk = new_file.read(_CHUNK)
            if chunk != old_file.read(_CHUNK):
                return False
            if not chunk:
                return True
