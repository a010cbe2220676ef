"""An image's layers as one tree of hard links, for kernels that refuse overlay. Made once, kept in the store."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from repro_env.io import files
from repro_env.run import workspace


def tree(layers: Sequence[Path], target: Path) -> Path:
    """The merged tree at `target`, made from `layers` (lowest first) unless it is there. Raises `DiskError`, `OSError`.

    The files are the layers' own: whoever shows the tree has to show it read-only.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with files.locked(target.parent / f"{target.name}.lock"):
        if target.is_dir():
            return target
        for left in target.parent.glob(f".{target.name}.*"):  # under our lock: of a process that was killed
            files.remove_tree(left)
        young = target.parent / f".{target.name}.{secrets.token_hex(4)}"
        try:
            with files.room(target.parent):
                young.mkdir()
                for layer in layers:
                    _lay(layer, young)
                young.chmod(0o755)
                young.rename(target)
        except BaseException:
            files.remove_tree(young)
            raise
    return target


def _lay(layer: Path, onto: Path) -> None:
    """Put one layer over what is there."""
    for found in files.walk(layer):
        source, here = layer / found.path, onto / found.path
        if found.kind == "dir":
            if here.is_symlink() or not here.is_dir():
                here.unlink(missing_ok=True)
                here.mkdir()
                here.chmod(0o755)
            continue
        _remove(here)
        if found.kind == "link":
            here.symlink_to(found.target)
        elif found.kind == "file":
            _link(source, here)
        elif not _is_whiteout(source):
            raise OSError(errno.EINVAL, "is neither a file, a folder nor a symlink", str(source))


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
        # no hard links on this file system, or too many on this file already
        if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV):
            raise
        workspace.copy_file(source, target)
