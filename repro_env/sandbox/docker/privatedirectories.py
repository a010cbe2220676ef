"""Cover directories of a container with writable, private directories of this machine.

Programs write to HOME and /tmp, so each is covered with an empty directory of the run. The image's files in it are mounted
read-only again, because a captured interpreter may be there. A directory that holds only directories is created and not
mounted, so that programs can add directories to it (~/.local/share).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from repro_env.sandbox.docker.container import Bind

_MANY = 64
"""A directory with more subdirectories than this is mounted as it is, because each of them would need a mount."""


def cover(paths: Sequence[str], merged: Path, targets: Sequence[str], directory: Callable[[str], Path]) -> Iterator[Bind]:
    """Yield the mounts for all covered `paths`. `directory` returns the private directory for a path.

    `merged` is the merged tree of the image. `targets` are the paths of other mounts. Raises `OSError`.
    """
    outermost: list[str] = []
    for path in paths:
        if not any(path.startswith(above + "/") for above in outermost):
            outermost.append(path)
    for path in outermost:
        own = directory(path)
        yield Bind(source=str(own), target=path, read_only=False)
        inner = [target for target in targets if target.startswith(path + "/")]
        writable = {below for below in paths if below.startswith(path + "/")}
        yield from _fill(own, path, merged, frozenset(inner), frozenset(writable))


def _fill(own: Path, path: str, merged: Path, targets: frozenset[str], writable: frozenset[str]) -> Iterator[Bind]:
    """Fill the private directory `own` with the image's files at `path`: links and directories are created, files are mounted."""
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
            (own / item.name).mkdir()
            (own / item.name).chmod(0o755)
            is_parent = any(f"{mount}/".startswith(f"{target}/") for mount in targets | writable)
            if is_parent or _holds_only_directories(item.path):
                yield from _fill(own / item.name, target, merged, targets, writable)
            else:
                yield Bind(source=item.path, target=target, read_only=True)
        else:
            (own / item.name).touch()
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
