"""`squashfs:FILE`: all layers as one read-only file system, for clusters that mount images. Made by squashfs-tools.

The same layers give the same bytes with one version of squashfs-tools: times, owners, order and compressor are fixed. Its
digest is no part of any identity; what a file system image has no place for (variables, labels) is in none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from repro_env.image import tar
from repro_env.image.entry import Entry, ordered
from repro_env.io import process
from repro_env.io.files import FileContents, room, sync_folder, walk
from repro_env.model.errors import ArtifactError, BuildError, DiskError, UsageError
from repro_env.store.temp import Temp

PROGRAM = "mksquashfs"
_OPTIONS = (
    *("-comp", "zstd", "-Xcompression-level", "3", "-b", "131072"),
    *("-mkfs-time", str(tar.MTIME), "-all-time", str(tar.MTIME), "-root-time", str(tar.MTIME)),
    *("-all-root", "-root-mode", "755", "-root-uid", "0", "-root-gid", "0"),
    *("-no-xattrs", "-reproducible", "-exit-on-error", "-quiet", "-no-progress"),
)
_SAID = 500
_FULL = ("no space left", "disk quota")


def write(trees: Sequence[Path], path: Path) -> str:
    """Write the file, there whole or as it was. `trees`: the unpacked layers, lowest first. Returns where it is, for people.

    Raises `UsageError` for a path that cannot be written, or where the program is missing; `DiskError`, `BuildError`.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise UsageError(
            f"needs the program {PROGRAM}",
            where="--output squashfs:",
            hint="install squashfs-tools 4.5 or newer, or send the image elsewhere: --output oci:DIR",
        )
    path = path.absolute()
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise UsageError(what, where=str(path), hint="name a file to write, in a folder that is there")
    # It refuses options of its own where the environment has this too.
    environ = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    temp = Temp(path.parent / f".{path.name[:200]}.repro-env")
    try:
        temp.clean()
        with room(path.parent), temp.folder() as folder:
            made = folder / "image"
            done = process.run([program, "-", str(made), "-tar", *_OPTIONS], env=environ, stdin=_tar(trees))
            _check(done, path)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.chmod(0o666 & ~_umask())
            made.replace(path)
    except PermissionError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path), hint="name another folder") from None
    sync_folder(path.parent)
    return f"squashfs:{path}"


def _check(done: process.Done, path: Path) -> None:
    if done.code == 0:
        return
    said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())[-_SAID:]
    if any(word in said.lower() for word in _FULL):
        raise DiskError(f"no room left for the file system: {said}", where=str(path), hint="free some room there")
    ended = f"signal {-done.code}" if done.code < 0 else f"exit status {done.code}"
    raise BuildError(
        f"{PROGRAM} failed ({ended}): {said or 'it says nothing'}", where=str(path), hint="it takes squashfs-tools 4.5 or newer"
    )


def _umask() -> int:
    """As a file that we would write has it; there is no way to read it without setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _tar(trees: Sequence[Path]) -> Iterator[bytes]:
    """What all layers together show."""
    shown = merged(trees)
    contents = [FileContents(tree) for tree in trees]
    yield from tar.write(
        (entry, contents[shown[entry.path][1]].chunks(entry) if entry.kind == "file" else ())
        for entry in ordered(entry for entry, _ in shown.values())
    )


def merged(trees: Sequence[Path]) -> dict[str, tuple[Entry, int]]:
    """Path -> (what the layers show there, which of them has it). Raises `ArtifactError` for a folder that is no layer."""
    shown: dict[str, tuple[Entry, int]] = {}
    for number, tree in enumerate(trees):
        own: dict[str, Entry] = {}
        for found in walk(tree):
            # A removed path is a device 0:0 there (overlayfs), and nothing else is a device.
            kind = "gone" if found.kind == "other" else found.kind
            own[found.path] = Entry(found.path, kind, found.executable, found.size, "", found.target)
        solid = {path for path, entry in own.items() if entry.kind != "dir"}
        if solid & shown.keys():
            shown = {path: one for path, one in shown.items() if path not in solid and not _below(path, solid)}
        shown |= {path: (entry, number) for path, entry in own.items() if entry.kind != "gone"}
    if not shown:
        raise ArtifactError("holds no file", where="the image", hint="rebuild it")
    return shown


def _below(path: str, solid: set[str]) -> bool:
    while path := path.rpartition("/")[0]:
        if path in solid:
            return True
    return False
