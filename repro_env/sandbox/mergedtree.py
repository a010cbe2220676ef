"""Merge the layers of an image into a tree of hard links, for kernels that refuse overlay. Made once and kept in the store."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from repro_env.io import files
from repro_env.sandbox import workspace


def make_tree(layers: Sequence[Path], target: Path) -> Path:
    """Merge `layers` (lowest first) into `target`, unless it exists. Returns `target`. Raises `DiskError`, `OSError`.

    The files are shared with the layers, so the tree must only be mounted read-only.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with files.locked(target.parent / f"{target.name}.lock"):
        if target.is_dir():
            return target
        for stale in target.parent.glob(f".{target.name}.*"):  # we hold the lock, so the process that made it was killed
            files.remove_tree(stale)
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}"
        try:
            with files.room(target.parent):
                temporary.mkdir()
                for layer in layers:
                    _add_layer(layer, temporary)
                temporary.chmod(0o755)
                temporary.rename(target)
        except BaseException:
            files.remove_tree(temporary)
            raise
    return target


def _add_layer(layer: Path, tree: Path) -> None:
    """Apply a layer to the tree of the lower layers."""
    for found in files.walk(layer):
        source, target = layer / found.path, tree / found.path
        if found.kind == "dir":
            if target.is_symlink() or not target.is_dir():
                target.unlink(missing_ok=True)
                target.mkdir()
                target.chmod(0o755)
            continue
        _remove(target)
        if found.kind == "link":
            target.symlink_to(found.target)
        elif found.kind == "file":
            _link(source, target)
        elif not _is_whiteout(source):
            raise OSError(errno.EINVAL, "it is not a file, a directory or a symlink", str(source))


def _is_whiteout(path: Path) -> bool:
    facts = path.lstat()
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        files.remove_tree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # The file system has no hard links, or the file already has too many.
        if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV):
            raise
        workspace.copy_file(source, target)
