"""The image in the store, as the embedded and the Docker runner use it.

Docker, and kernels that refuse overlay, need the layers merged in one tree: hard links, made once and kept in the store.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from repro_env.io import files
from repro_env.oci import paths
from repro_env.sandbox import fabric, workspace
from repro_env.schema.errors import StoreError
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import FILES

Mounts = dict[str, tuple[str, bool]]
"""Path inside a run -> path on this machine, and whether it is read-only."""


class Image:
    """The image in the store, as the embedded and the Docker runner use it."""

    def __init__(
        self,
        layers: Callable[[str], Path | None],
        *,
        merged: Path,
        interpreter: str,
        bytecode: Path | None = None,
        linked: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`layers` returns the unpacked tree for a diff ID; `interpreter` is the path of Python in the image.

        `merged` is the directory for merged trees of hard links, on the same disk as the layers. `bytecode` is a read-only tree
        with the layout of PYTHONPYCACHEPREFIX. `linked` is called for each layer whose files got new hard links.
        """
        self._layers = layers
        self._linked = linked
        self._merged = merged.resolve()
        self.interpreter = interpreter
        self.bytecode = None if bytecode is None else bytecode.resolve()

    @property
    def store(self) -> Path:
        """The directory with the unpacked layers."""
        return self._merged.parent

    def tree(self, diff_id: str) -> Path:
        """The unpacked tree of a layer, without symlinks in its path. Raises `StoreError`."""
        path = self._layers(diff_id)
        if path is None:
            raise StoreError("this layer is not in the store", where=diff_id, hint="run `repro-env rebuild`")
        return path.resolve()

    def mounts(self, launch: Launch, directory: Path) -> Mounts:
        """What every run mounts, after `prepare`, without trees of the image."""
        mounts = {launch.workspace: (str(directory / FILES), False)}
        mounts |= {mount.target: (mount.source, mount.read_only) for mount in launch.mounts}
        mounts |= {file.target: (file.source, True) for file in launch.gpus.files}
        if self.bytecode is not None:
            mounts[paths.PYCACHE] = (str(self.bytecode), True)
        if launch.site is not None and self._can_mount_site(launch):
            mounts[launch.site] = (f"{launch.tools}/{paths.SITE}", True)
        return mounts | {paths.SEEDS: (launch.tools, True), paths.REPORTS: (launch.reports, False)}

    def merge(self, launch: Launch) -> Path:
        """The merged tree of the layers, which is made for the first run. Raises `StoreError`, `DiskError`, `OSError`."""
        layers = [self.tree(diff_id) for diff_id in launch.layers]
        target = self._merged / launch.image.removeprefix("sha256:")
        if not target.is_dir():
            merge(layers, target)
            for diff_id in launch.layers:
                self._linked(diff_id)
        if launch.site is not None and self._can_mount_site(launch):
            Path(f"{target}{launch.site}").mkdir(mode=0o755, exist_ok=True)
        return target

    def _can_mount_site(self, launch: Launch) -> bool:
        """Whether the image has the directory of `Launch.site`, and nothing at that path."""
        found = [find_in_image(self.tree(diff_id), str(launch.site)) for diff_id in launch.layers]
        is_free = not any(path is None or os.path.lexists(path) for path in found)
        return is_free and any(path is not None and path.parent.is_dir() for path in found)


def image_means(image: Image, launch: Launch) -> list[str]:
    """How the runners of images ran a launch, for the record."""
    adapters = sum(node.target.startswith(f"{fabric.DIRECTORY}/uverbs") for node in launch.gpus.nodes)
    return [
        *([] if image.bytecode else ["bytecode: none"]),
        *([f"gpus: {launch.gpus.method}"] if launch.gpus.count else []),
        *([f"infiniband: {adapters}"] if adapters else []),
    ]


def find_in_image(tree: Path, path: str) -> Path | None:
    """The file in a tree for a path of the image; None if the path contains a symlink, which could leave the image."""
    file = tree
    for part in path.strip("/").split("/"):
        file = file / part
        if file.is_symlink():
            return None
    return file


def merge(layers: Sequence[Path], target: Path) -> Path:
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
        source, target = f"{layer}/{found.path}", f"{tree}/{found.path}"  # path objects take longer than the links
        if found.kind == "dir" and os.path.isdir(target) and not os.path.islink(target):  # noqa: PTH112, PTH114
            continue
        try:
            _add(found, source, target)
        except FileExistsError:
            _remove(target)
            _add(found, source, target)


def _add(found: files.Found, source: str, target: str) -> None:
    if found.kind == "dir":
        os.mkdir(target)  # noqa: PTH102
        os.chmod(target, 0o755)  # noqa: PTH101, S103
    elif found.kind == "link":
        os.symlink(found.target, target)  # noqa: PTH211
    elif found.kind == "file":
        _link(source, target)
    elif _is_whiteout(source):
        _remove(target)
    else:
        raise OSError(errno.EINVAL, "it is not a file, a directory or a symlink", source)


def _is_whiteout(path: str) -> bool:
    facts = os.lstat(path)
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
        files.remove_tree(Path(path))
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # The file system has no hard links, or the file already has too many.
        if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV):
            raise
        workspace.copy_file(Path(source), Path(target))
