"""Everything that a container mounts: a copy of the source, private directories, trees of the image, files of /etc.

The image is read-only. HOME, directories for temporary files and the parent of the project are covered with those of the same
path in the run's directory `outside`. The image's files in a covered directory are mounted in the cover, because a captured
interpreter may be there. A directory that holds only directories is created and not mounted, so that programs can add
directories to it (~/.local/share).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Iterator
from pathlib import Path

from repro_env.io import filesystem
from repro_env.oci.paths import is_below
from repro_env.sandbox import workspace
from repro_env.sandbox.embedded import rootfs
from repro_env.sandbox.handover import CONTROL
from repro_env.sandbox.image import Image, Mounts, find_in_image
from repro_env.schema.errors import RunError
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import OUTSIDE, SCRATCH

_MANY = 64
"""A directory with more subdirectories than this is mounted as it is, because each of them would need a mount."""


def make(launch: Launch, directory: Path, image: Image, control: Path) -> Mounts:
    """Make all files and directories that the container mounts. `workspace.prepare` has prepared the run's `directory`.

    `control` is the directory with the socket. Raises `RunError`, `DiskError`, `OSError`.
    """
    merged = image.merge(launch)
    mounts = image.mounts(launch, directory) | {CONTROL: (str(control), True)}
    mounts |= {tree.target: (_image_path(merged, tree.root), True) for tree in launch.trees}
    writable = writable_directories(launch, merged)
    needed = {target: mounts[target] for target in mounts if target != launch.site}  # the merged tree has its mount point
    covers = dict(cover(writable, merged, needed, directory / OUTSIDE))
    points = {target: os.path.isdir(source) for target, (source, _) in (mounts | covers).items()}  # noqa: PTH112
    for target, (source, read_only) in covers.items():  # all are covered before mount points are made in them
        if not read_only:
            workspace.make_mount_points(Path(source), target, points | dict.fromkeys(writable, True))
    return covers | mounts | dict(_submounts(launch)) | dict(_etc(launch, merged, directory / SCRATCH))


def writable_directories(launch: Launch, merged: Path) -> list[str]:
    """Directories of the container that must be covered with writable ones.

    Besides HOME, the parent of the project and the directories for temporary files, these are the parents of targets of
    `launch.trees` that are symlinks in the image, where a mount would follow the link.
    """
    links = [tree.target for tree in launch.trees if os.path.islink(f"{merged}{tree.target}")]  # noqa: PTH114
    paths = {*workspace.TEMPORARY, *(posixpath.dirname(path) for path in (launch.workspace, *links))}
    if not any(is_below(launch.user.home, mount.target) for mount in launch.mounts):
        paths.add(launch.user.home)
    return sorted(path for path in paths if path != "/" and not is_below(path, "/run", launch.workspace))


def cover(paths: Collection[str], merged: Path, mounts: Mounts, outside: Path) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Yield the mounts that cover `paths`. `merged` is the merged tree of the image, `mounts` are other mounts. Raises `OSError`."""
    for path in paths:
        if not any(path.startswith(above + "/") for above in paths):
            own = Path(f"{outside}{path}")
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o1777 if path in workspace.TEMPORARY else 0o755)
            yield path, (str(own), False)
            yield from fill(own, path, merged, {*mounts, *paths})


def fill(own: Path, path: str, merged: Path, targets: set[str]) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Fill the cover `own` with the image's files at `path`: links and directories are created, files are mounted."""
    original = find_in_image(merged, path)
    if original is None or not original.is_dir():
        return
    for item in os.scandir(original):
        target, point = f"{path}/{item.name}", own / item.name
        if target in targets and not item.is_dir():
            continue
        if item.is_symlink():
            point.symlink_to(Path(item.path).readlink())
        elif not item.is_dir():
            workspace.make_file_point(point)
            yield target, (item.path, True)
        else:
            point.mkdir(mode=0o755, exist_ok=True)
            if any(other.startswith(f"{target}/") for other in targets) or _holds_only_directories(item.path):
                yield from fill(point, target, merged, targets)
            elif target not in targets:
                yield target, (item.path, True)


def _holds_only_directories(path: str) -> bool:
    with os.scandir(path) as listing:
        items = list(listing)
    return len(items) <= _MANY and all(item.is_dir() for item in items)


def _image_path(image: Path, root: str) -> str:
    """The path on this machine of a tree of the image. Raises `RunError`."""
    path = find_in_image(image, root)
    if path is None or not path.exists():
        raise RunError("this path is not in the image", where=root, hint="capture again")
    return str(path)


def _submounts(launch: Launch) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Mount what is mounted below read-only mounts separately, because engines leave it writable."""
    table = filesystem.mounts()
    for mount in launch.mounts:
        if mount.read_only:
            below = mount.source.rstrip("/") + "/"
            for entry in table:
                if entry.point.startswith(below):
                    yield f"{mount.target}/{entry.point[len(below) :]}", (entry.point, True)


def _etc(launch: Launch, merged: Path, scratch: Path) -> Iterator[tuple[str, tuple[str, bool]]]:
    """Write the files of /etc that are made for each run."""

    def read_image(name: str) -> bytes:
        file = find_in_image(merged, f"/etc/{name}")
        return b"" if file is None else rootfs.read(str(file))

    for name, text in rootfs.etc_files(launch, rootfs.resolver_files(launch), read_image).items():
        path = scratch / name
        path.write_bytes(text)
        path.chmod(0o644)
        yield f"/etc/{name}", (str(path), True)
