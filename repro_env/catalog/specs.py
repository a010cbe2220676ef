"""The specs that runs ran from, beside their records: each one once, by the sha256 of its bytes.

    runs/specs/sha256-<hex>/
        spec.json    written once, never changed
        remote.json  where it was pushed, if it was
        blobs/       what it carries, as far as it was beside the captured spec

A capture may overwrite a spec that was never committed; the record names the one that it ran from (`Start.spec_file`).
Such a folder is that of a spec as any other: what takes a spec takes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from repro_env.io.files import atomic_write, read_regular, remove_tree, room
from repro_env.model.errors import DiskError, RecordError

FOLDER = "specs"
FILE = "spec.json"
_NAME = re.compile(r"sha256-[0-9a-f]{64}")
"""Unlike those of the store's own folders of specs, which came from anywhere and lie in no project."""
_GONE = ".gone-"
_LARGEST = 256 << 20
"""Bytes of a spec; the largest known is a few MB."""
_YOUNG = 3600.0
"""Seconds that one stays after a run used it: a run that is about to begin has no record yet."""
_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")


class Kept(msgspec.Struct, frozen=True):
    """A spec that lies there."""

    digest: str
    """`sha256:<hex>` of its bytes, as its name says."""
    folder: Path
    used: float
    """When a run began with it last, in seconds since 1970."""


def place(runs: Path, digest: str) -> Path:
    """Where a spec of this digest (`sha256:<hex>`) lies, or would."""
    return runs / FOLDER / digest.replace(":", "-")


def runs_of(folder: Path) -> Path | None:
    """The runs folder in which a spec's folder is such a one; None for any other."""
    is_kept = folder.parent.name == FOLDER and _NAME.fullmatch(folder.name) is not None
    return folder.parent.parent if is_kept and folder.parent.parent.name else None


def write(runs: Path, data: bytes) -> str:
    """Keep a spec, unless it is there already. Returns `sha256:<hex>` of its bytes.

    Raises `RecordError` when it cannot be written, `DiskError` without room.
    """
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    folder = place(runs, digest)
    try:
        with room(runs):
            folder.mkdir(parents=True, exist_ok=True)
            if _bytes(folder / FILE) != data:
                atomic_write(folder / FILE, data)
                (folder / FILE).chmod(0o444)
    except (OSError, DiskError) as error:
        if isinstance(error, DiskError):
            raise
        raise RecordError(
            f"a copy of the run's spec cannot be made: {error.strerror}",
            where=str(folder),
            hint="name another place with --runs DIR",
        ) from None
    with contextlib.suppress(OSError):  # another user's: then it is only as old as it looks
        os.utime(folder)
    return digest


def read(runs: Path, digest: str) -> bytes:
    """The bytes of a kept spec. Raises `RecordError` when it is not there, or is not what its name says."""
    path = place(runs, digest) / FILE
    data = _bytes(path)
    if data is None:
        raise RecordError("the spec that it ran from is not there", where=str(path), hint="restore it from where it was copied")
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise RecordError("is not the spec that its name says: it was changed", where=str(path), hint="restore it")
    return data


def there(runs: Path) -> tuple[Kept, ...]:
    """All that are kept, sorted by digest."""
    if (runs / FOLDER).is_symlink():
        return ()
    try:
        items = [one for one in os.scandir(runs / FOLDER) if _NAME.fullmatch(one.name) and one.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = (Kept(one.name.replace("-", ":"), Path(one.path), one.stat(follow_symlinks=False).st_mtime) for one in items)
    return tuple(sorted(found, key=lambda one: one.digest))


def unused(found: Collection[Kept], named: Collection[str], *, now: float) -> tuple[Kept, ...]:
    """Those whose digest no record names, and that no run can be about to name."""
    return tuple(one for one in found if one.digest not in named and one.used < now - _YOUNG)


def mentioned(folder: Path) -> set[str]:
    """Every digest that stands in a record that cannot be read: each may be that of its spec."""
    data = _bytes(folder / "start.json")
    return set() if data is None else {one.decode() for one in _DIGEST.findall(data)}


def remove(one: Kept) -> None:
    """Raises `OSError`. Out of sight first: half a spec must not look like one."""
    hidden = one.folder.with_name(f"{_GONE}{one.folder.name}")
    one.folder.rename(hidden)
    remove_tree(hidden)
    with contextlib.suppress(OSError):
        one.folder.parent.rmdir()  # where it was the last


def tidy(runs: Path) -> None:
    """Take away what removals left that were killed. What cannot be removed stays."""
    for path in (runs / FOLDER).glob(f"{_GONE}*"):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):
                remove_tree(path)


def _bytes(path: Path) -> bytes | None:
    """Of a plain file that is no larger than a spec may be; None for anything else."""
    try:
        return read_regular(path, _LARGEST)
    except OSError:
        return None
