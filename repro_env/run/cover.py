"""Folders of a container that can be written: private ones of this machine, with what the image has there shown in them.

A read-only root has places that programs write to all the same: HOME, /tmp. Each is covered by an empty folder of the
run's own. What the image has in it is shown again, read-only: a captured interpreter may live there. A folder that
holds nothing but folders is made anew and not shown, so that a program can put its own beside them (~/.local/share).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from repro_env.run.container import Bind

_MANY = 64
"""A folder of more folders than this is shown as it is: each of them would be a mount."""


def cover(paths: Sequence[str], merged: Path, targets: Sequence[str], folder: Callable[[str], Path]) -> Iterator[Bind]:
    """The mounts of all covered folders. `folder` gives the private folder for a path.

    `merged`: the image's whole tree. `targets`: what else will be mounted. Raises `OSError`.
    """
    covered: list[str] = []
    for path in paths:
        if not any(path.startswith(one + "/") for one in covered):
            covered.append(path)
    for path in covered:
        own = folder(path)
        yield Bind(source=str(own), target=path, read_only=False)
        inner = [target for target in targets if target.startswith(path + "/")]
        opened = {one for one in paths if one.startswith(path + "/")}
        yield from _fill(own, path, merged, frozenset(inner), frozenset(opened))


def _fill(own: Path, path: str, merged: Path, targets: frozenset[str], opened: frozenset[str]) -> Iterator[Bind]:
    there = within(merged, path)
    if there is None or not there.is_dir():
        return
    for item in sorted(os.scandir(there), key=lambda item: item.name):
        here = f"{path}/{item.name}"
        if here in targets:
            continue
        if item.is_symlink():
            (own / item.name).symlink_to(Path(item.path).readlink())
        elif item.is_dir():
            (own / item.name).mkdir()
            (own / item.name).chmod(0o755)
            needed = any(one == here or one.startswith(here + "/") for one in targets | opened)
            if needed or _of_folders(item.path):
                yield from _fill(own / item.name, here, merged, targets, opened)
            else:
                yield Bind(source=item.path, target=here, read_only=True)
        else:
            (own / item.name).touch()
            yield Bind(source=item.path, target=here, read_only=True)


def within(merged: Path, path: str) -> Path | None:
    """Where the image's own `path` lies on this machine; None when a symlink is on the way, which would lead out of the image."""
    here = merged
    for part in path.strip("/").split("/"):
        here = here / part
        if here.is_symlink():
            return None
    return here


def _of_folders(path: str) -> bool:
    with os.scandir(path) as listing:
        items = list(listing)
    return len(items) <= _MANY and all(item.is_dir() for item in items)
