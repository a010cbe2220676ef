"""Make everything that a container mounts: a copy of the source, private directories, trees of the image, files of /etc.

The image is read-only. HOME, directories for temporary files and directories that the image lacks are covered with those of the
same path in the run's directory `outside`. The image's files in a covered directory are mounted in the cover, because a captured
interpreter may be there. A directory that holds only directories is created and not mounted, so that programs can add
directories to it (~/.local/share).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repro_env.oci import paths as layout
from repro_env.sandbox import filesystem, memory, workspace
from repro_env.sandbox.docker import container
from repro_env.sandbox.docker.container import Bind, Resources
from repro_env.sandbox.embedded import rootfs, stage
from repro_env.sandbox.image import Image
from repro_env.sandbox.outputs import OUTSIDE
from repro_env.sandbox.workspace import make_file_point, make_mount_points
from repro_env.schema.errors import RunError
from repro_env.schema.run import Launch

_MANY = 64
"""A directory with more subdirectories than this is mounted as it is, because each of them would need a mount."""


def make(launch: Launch, directory: Path, image: Image, *, keep_id: bool) -> Resources:
    """Make all files and directories that the container mounts. `workspace.prepare` has prepared the run's `directory`.

    `keep_id` is as in `Resources`. Raises `RunError`, `DiskError`, `OSError`.
    """
    outside, scratch = directory / OUTSIDE, directory / workspace.SCRATCH
    merged = image.merge(launch)
    binds = [Bind(source=_image_path(merged, shown.root), target=shown.target, read_only=True) for shown in launch.trees]
    links = [shown.target for shown in launch.trees if os.path.islink(f"{merged}{shown.target}")]  # noqa: PTH114
    siblings = workspace.siblings_in(directory, launch)
    kinds = {bind.target: os.path.isdir(bind.source) for bind in binds}  # noqa: PTH112
    kinds |= {mount.target: os.path.isdir(mount.source) for mount in launch.mounts}  # noqa: PTH112
    kinds |= dict.fromkeys((launch.workspace, *siblings), True)
    writable = container.writable_directories(launch, links, _missing(launch, merged))
    for bind in list(cover(writable, merged, kinds, outside)):  # all are covered before mount points are made in them
        binds.append(bind)
        if not bind.read_only:
            make_mount_points(Path(bind.source), bind.target, kinds | dict.fromkeys(writable, True))
    binds += [Bind(source=str(copy), target=path, read_only=False) for path, copy in siblings.items()]
    binds += _submounts(launch)
    (scratch / "etc").mkdir()
    binds += [_etc_file(scratch / "etc" / name, text) for name, text in _etc(launch, merged).items()]
    if image.bytecode is not None:
        binds.append(Bind(source=str(image.bytecode), target=layout.PYCACHE, read_only=True))
    control = scratch / "control"
    control.mkdir(mode=0o700)
    cpus = os.sched_getaffinity(0)
    return Resources(
        control=str(control),
        interpreter=image.interpreter,
        workspace=str(directory / "files"),
        binds=tuple(binds),
        groups=tuple(sorted(set(os.getgroups()) - {launch.user.gid})),
        shm_size=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2,
        memory=memory.limit(),
        cpus=",".join(map(str, sorted(cpus))) if len(cpus) < (os.cpu_count() or 0) else "",
        keep_id=keep_id,
    )


def cover(paths: Sequence[str], merged: Path, targets: Iterable[str], outside: Path) -> Iterator[Bind]:
    """Yield the mounts for all covered `paths`, which are sorted, the outermost first.

    `merged` is the merged tree of the image. `targets` are the paths of other mounts. Raises `OSError`.
    """
    parents = {f"{target}/" for target in (*targets, *paths)}
    for path in paths:
        if not any(path.startswith(above + "/") for above in paths):
            own = Path(f"{outside}{path}")
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o1777 if path in workspace.TEMPORARY else 0o755)
            yield Bind(source=str(own), target=path, read_only=False)
            yield from _fill(own, path, merged, frozenset(targets), parents)


def _fill(own: Path, path: str, merged: Path, targets: frozenset[str], parents: set[str]) -> Iterator[Bind]:
    """Fill the cover `own` with the image's files at `path`: links and directories are created, files are mounted."""
    original = find_in_image(merged, path)
    if original is None or not original.is_dir():
        return
    for item in sorted(os.scandir(original), key=lambda item: item.name):
        target = f"{path}/{item.name}"
        if target in targets:
            continue
        if item.is_symlink():
            (own / item.name).symlink_to(Path(item.path).readlink())
        elif item.is_dir():
            (own / item.name).mkdir(mode=0o755, exist_ok=True)
            if any(parent.startswith(f"{target}/") for parent in parents) or _holds_only_directories(item.path):
                yield from _fill(own / item.name, target, merged, targets, parents)
            else:
                yield Bind(source=item.path, target=target, read_only=True)
        else:
            make_file_point(own / item.name)
            yield Bind(source=item.path, target=target, read_only=True)


def find_in_image(merged: Path, path: str) -> Path | None:
    """The file in the merged tree for a path of the image; None if the path contains a symlink, which could leave the image."""
    file = merged
    for part in path.strip("/").split("/"):
        file = file / part
        if file.is_symlink():
            return None
    return file


def _holds_only_directories(path: str) -> bool:
    with os.scandir(path) as listing:
        items = list(listing)
    return len(items) <= _MANY and all(item.is_dir() for item in items)


def _missing(launch: Launch, image: Path) -> list[str]:
    """Directories where a user may write on this machine and that the image lacks, such as `/scratch`.

    If they were not covered, an engine would make them for root only.
    """
    top_level = {f"/{item.name}" for item in os.scandir("/") if item.is_dir(follow_symlinks=False)}
    parents = {launch.workspace.rpartition("/")[0], "/" + launch.workspace.split("/")[1]}
    paths = sorted((top_level | parents) - {"", *_SYSTEM})
    return [path for path in paths if path != launch.workspace and _is_missing(image, path)]


_SYSTEM = ("/proc", "/sys", "/dev", "/run", "/bin", "/sbin", "/lib", "/lib64", "/usr", "/etc", "/var", "/boot", "/lost+found")
"""Directories of the system, without files of users."""


def _is_missing(image: Path, path: str) -> bool:
    file = find_in_image(image, path)
    return file is not None and not file.exists()


def _image_path(image: Path, root: str) -> str:
    """The path on this machine of a tree of the image. Raises `RunError`."""
    path = find_in_image(image, root)
    if path is None or not path.exists():
        raise RunError("this path is not in the image", where=root, hint="capture again")
    return str(path)


def _submounts(launch: Launch) -> Iterator[Bind]:
    """Bind mounts below read-only ones separately, because engines leave them writable."""
    table = filesystem.mounts()
    for mount in launch.mounts:
        if mount.read_only:
            below = mount.source.rstrip("/") + "/"
            for point in dict.fromkeys(entry.point for entry in table if entry.point.startswith(below)):
                yield Bind(source=point, target=f"{mount.target}/{point[len(below) :]}", read_only=True)


def _etc(launch: Launch, image: Path) -> dict[str, bytes]:
    hosts, resolv = stage.resolver_files() if launch.network else (None, b"")

    def read(name: str) -> bytes:
        file = find_in_image(image, f"/etc/{name}")
        return b"" if file is None else rootfs.read(str(file))

    shell = next(
        (path for path in ("/bin/bash", "/usr/bin/bash") if (file := find_in_image(image, path)) and file.exists()), "/bin/sh"
    )
    return rootfs.etc_files(
        launch.user,
        launch.hostname,
        passwd=read("passwd"),
        group=read("group"),
        shell=shell,
        hosts=hosts,
        resolv=resolv,
    )


def _etc_file(path: Path, text: bytes) -> Bind:
    path.write_bytes(text)
    path.chmod(0o644)
    return Bind(source=str(path), target=f"/etc/{path.name}", read_only=True)
