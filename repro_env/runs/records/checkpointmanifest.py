"""Read the manifest of a checkpoint (`repro_env.checkpoint`).

It has claims of the program that wrote it, not facts. A hostile file raises only the errors of this package.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import msgspec

from repro_env.io.files import read_regular
from repro_env.schema import codec
from repro_env.schema.errors import RecordError

NAME = "manifest.json"
FAMILY = "repro-env/checkpoint"
_LARGEST = 16 << 20
"""The largest manifest that is read, in bytes."""
_DIRECTORIES = 5_000
"""How many directories a search for manifests reads."""
_DEPTH = 8


class CheckpointFile(msgspec.Struct, frozen=True):
    sha256: str
    """Hex digits without a prefix."""
    size: int


class CheckpointParent(msgspec.Struct, frozen=True):
    """The checkpoint from which a process resumed, as `repro_env.checkpoint` reported it."""

    run: str
    """The id of the run that wrote it; empty if it was not a recorded run."""
    path: str
    sha256: str
    """The hex digest of its manifest, without a prefix."""
    step: int


class Code(msgspec.Struct, frozen=True):
    digest: str | None = None
    """The digest of the source tree, as in the record of a run."""


class Seeds(msgspec.Struct, frozen=True):
    master: int | None = None


class Manifest(msgspec.Struct, frozen=True):
    """The fields that lineage shows. All others are ignored."""

    schema: str
    step: int
    run: str
    """The id of the run that wrote the checkpoint; empty if there was none."""
    files: dict[str, CheckpointFile]
    """By name in the directory of the checkpoint."""
    epoch: int | None = None
    parent: CheckpointParent | None = None
    code: Code = Code()
    data: dict[str, str] = {}
    image: str | None = None
    spec: str | None = None
    seeds: Seeds = Seeds()


class File(msgspec.Struct, frozen=True):
    """A manifest file."""

    path: Path
    sha256: str
    """The hex digest of the file, without a prefix."""
    manifest: Manifest


def read(path: Path) -> File | None:
    """Read a manifest file; None if it is missing or not a manifest.

    Raises `SpecError` if it is damaged, `SpecVersionError` if a newer version wrote it, `RecordError` if it cannot be read.
    """
    try:
        if path.is_dir():
            return None
        data = read_regular(path, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL) and not path.is_symlink():  # too large, or a pipe
            return None
        raise RecordError(
            f"the checkpoint manifest cannot be read: {error.strerror}",
            where=str(path),
            hint="give yourself permission to read it",
        ) from None
    if f'"{FAMILY}/'.encode() not in data:
        return None
    codec.schema_of(data, family=FAMILY, newest=1, where=str(path))
    return File(path, hashlib.sha256(data).hexdigest(), codec.decode(data, Manifest, where=str(path)))


def find_for(path: Path) -> File | None:
    """Return the manifest in the directory of a file if it lists the file. Raises the errors of `read`."""
    file = read(path.parent / NAME)
    return file if file is not None and path.name in file.manifest.files else None


def search(root: Path) -> tuple[tuple[Path, ...], bool]:
    """Return the files below a directory with the name of a manifest, and whether the search was complete.

    Symlinks are not followed.
    """
    found: list[Path] = []
    budget = _DIRECTORIES
    complete = True
    todo = [(root, 0)]
    while todo and budget:
        directory, depth = todo.pop()
        budget -= 1
        try:
            with os.scandir(directory) as listing:
                items = sorted(listing, key=lambda item: item.name, reverse=True)
        except FileNotFoundError:
            continue
        except OSError:
            complete = False
            continue
        found += [directory / NAME for item in items if item.name == NAME and item.is_file(follow_symlinks=False)]
        directories = [(directory / item.name, depth + 1) for item in items if item.is_dir(follow_symlinks=False)]
        if depth < _DEPTH:
            todo += directories
        else:
            complete = complete and not directories
    return tuple(found), complete and not todo
