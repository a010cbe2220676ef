"""`squashfs:FILE`: all layers as one read-only file system for clusters that mount images. Made by squashfs-tools.

With the same version of squashfs-tools, the same layers give the same bytes: times, owners, order and compressor are
fixed. No image ID depends on it. Variables and labels of the image are not included.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro_env.io import process
from repro_env.io.files import FileContents, room, sync_directory, walk
from repro_env.oci import tar
from repro_env.oci.imagetree import ImageTree, flatten
from repro_env.oci.layerreader import to_node
from repro_env.schema.errors import ArtifactError, BuildError, DiskError, UsageError
from repro_env.store import layers
from repro_env.store.temporary import Temp

PROGRAM = "mksquashfs"
_OPTIONS = (
    *("-comp", "zstd", "-Xcompression-level", "3", "-b", "131072"),
    *("-mkfs-time", str(tar.MTIME), "-all-time", str(tar.MTIME), "-root-time", str(tar.MTIME)),
    *("-all-root", "-root-mode", "755", "-root-uid", "0", "-root-gid", "0"),
    *("-no-xattrs", "-reproducible", "-exit-on-error", "-quiet", "-no-progress"),
)
_LONGEST_MESSAGE = 500
_FULL = ("no space left", "disk quota")


def write(trees: Sequence[Path], path: Path) -> str:
    """Write the file, and replace an existing one only when it is complete. `trees`: the unpacked layers, lowest first.

    Returns where it is, as a line for the user. Raises `UsageError` if the path cannot be written or the program is
    missing, `DiskError`, `BuildError`.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise UsageError(
            f"the program {PROGRAM} is needed and was not found",
            where="--output squashfs:",
            hint="install squashfs-tools 4.5 or newer, or send the image elsewhere: --output oci:DIR",
        )
    path = path.absolute()
    if path.is_dir() or not path.parent.is_dir():
        what = "the path is a directory" if path.is_dir() else "the directory of the file does not exist"
        raise UsageError(what, where=str(path), hint="name a file in an existing directory")
    # mksquashfs refuses the time options if this variable is set.
    environ = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    temp = Temp(path.parent / f".{path.name[:200]}.repro-env")
    try:
        temp.clean()
        with room(path.parent), temp.directory() as directory:
            image = directory / "image"
            result = process.run([program, "-", str(image), "-tar", *_OPTIONS], env=environ, stdin=_tar(trees))
            _check(result, path)
            with image.open("rb") as file:
                os.fsync(file.fileno())
            image.chmod(0o666 & ~_umask())
            image.replace(path)
    except PermissionError as error:
        raise UsageError(
            f"the file cannot be written: {error.strerror}", where=str(path), hint="name another directory"
        ) from None
    sync_directory(path.parent)
    return f"squashfs:{path}"


def _check(result: process.Done, path: Path) -> None:
    if result.code == 0:
        return
    message = " ".join((result.stderr or result.stdout).decode(errors="replace").split())[-_LONGEST_MESSAGE:]
    if any(word in message.lower() for word in _FULL):
        raise DiskError(f"the disk is full: {message}", where=str(path), hint="free some disk space there")
    status = f"signal {-result.code}" if result.code < 0 else f"exit status {result.code}"
    raise BuildError(
        f"{PROGRAM} failed ({status}): {message or 'no message'}", where=str(path), hint="use squashfs-tools 4.5 or newer"
    )


def _umask() -> int:
    """Return the umask. It can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _tar(trees: Sequence[Path]) -> Iterator[bytes]:
    """Yield the tar of the merged layers. Raises `ArtifactError` if they have no file."""
    merged = merge_trees(trees)
    contents = [FileContents(tree) for tree in trees]
    yield from tar.write(
        (entry, contents[merged.placed[entry.path].layer].chunks(entry) if entry.kind == "file" else ())
        for entry in merged.entries()
    )


def merge_trees(trees: Sequence[Path]) -> ImageTree:
    """Return the tree that unpacked layers make together. Raises `ArtifactError` if they have no file."""
    merged = flatten([[to_node(layers.entry(tree, found)) for found in walk(tree)] for tree in trees])
    if not merged.placed:
        raise ArtifactError("the image holds no files", where="the image", hint="rebuild it")
    return merged
