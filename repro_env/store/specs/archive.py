"""Copies of the specs of runs, stored next to their records by the SHA-256 of the spec file.

    runs/specs/sha256-<hex>/
        spec.json    written once, never changed
        remote.json  the registry to which the spec was pushed, if any
        blobs/       the bundled files that were stored with the captured spec

A capture may overwrite a spec that was not committed, so the record of a run names the copy (`Start.spec_file`). The
directory of a copy can be used like any other directory of a spec.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from repro_env.io.files import atomic_write, read_regular, remove_tree, room
from repro_env.schema import codec
from repro_env.schema.errors import RecordError, os_errors_as
from repro_env.schema.rundirectory import START
from repro_env.store.specs.files import MAX_SIZE, SPEC

SUBDIRECTORY = "specs"
_NAME = re.compile(r"sha256-[0-9a-f]{64}")
"""The specs in the store have different directory names and do not belong to a project."""
_GRACE_PERIOD = 3600.0
"""Seconds for which an unused spec is not removed, because a run that is about to start has no record yet."""
_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")


class StoredSpec(msgspec.Struct, frozen=True):
    """A copy of a spec."""

    digest: str
    """The `sha256:<hex>` of the spec file, from the name of the directory."""
    directory: Path
    used: float
    """When a run last started from the spec, in seconds since 1970."""


def directory_of(runs: Path, digest: str) -> Path:
    """Return the directory for the spec with this digest (`sha256:<hex>`)."""
    return runs / SUBDIRECTORY / digest.replace(":", "-")


def runs_of(directory: Path) -> Path | None:
    """Return the directory of runs that contains this copy of a spec; None if the directory is not such a copy."""
    is_copy = directory.parent.name == SUBDIRECTORY and _NAME.fullmatch(directory.name) is not None
    return directory.parent.parent if is_copy and directory.parent.parent.name else None


def write(runs: Path, data: bytes) -> str:
    """Store a spec if it is not yet stored, and return the `sha256:<hex>` of its bytes.

    Raises `RecordError` if it cannot be written, and `DiskError` if the disk is full.
    """
    digest = codec.digest_of(data)
    directory = directory_of(runs, digest)
    hint = "name another directory with --runs DIR"
    with os_errors_as(RecordError, "the copy of the spec cannot be written", where=directory, hint=hint), room(runs):
        directory.mkdir(parents=True, exist_ok=True)
        if _bytes(directory / SPEC) != data:
            atomic_write(directory / SPEC, data)
            (directory / SPEC).chmod(0o444)
    with contextlib.suppress(OSError):  # it may belong to another user; then its time stays unchanged
        os.utime(directory)
    return digest


def read(runs: Path, digest: str) -> bytes:
    """Return the bytes of a stored spec. Raises `RecordError` if it is missing or has changed."""
    path = directory_of(runs, digest) / SPEC
    data = _bytes(path)
    if data is None:
        raise RecordError("the spec of the run is missing or cannot be read", where=str(path), hint="restore it from a copy")
    if codec.digest_of(data) != digest:
        raise RecordError("the spec of the run has changed", where=str(path), hint="restore it from a copy")
    return data


def listing(runs: Path) -> tuple[StoredSpec, ...]:
    """Return the stored specs, sorted by digest. Specs that are removed meanwhile are left out."""
    if (runs / SUBDIRECTORY).is_symlink():
        return ()
    try:
        entries = [
            entry
            for entry in os.scandir(runs / SUBDIRECTORY)
            if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    specs = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        with contextlib.suppress(FileNotFoundError):
            used = entry.stat(follow_symlinks=False).st_mtime
            specs.append(StoredSpec(entry.name.replace("-", ":"), Path(entry.path), used))
    return tuple(specs)


def unused(specs: Collection[StoredSpec], recorded: Collection[str], *, now: float) -> tuple[StoredSpec, ...]:
    """Return the specs that are not in a record and were not used recently. `recorded`: the digests in records."""
    return tuple(spec for spec in specs if spec.digest not in recorded and spec.used < now - _GRACE_PERIOD)


def mentioned(directory: Path) -> set[str]:
    """Return all digests in an unreadable record. Each may be the digest of its spec."""
    data = _bytes(directory / START)
    return set() if data is None else {digest.decode() for digest in _DIGEST.findall(data)}


def remove(spec: StoredSpec) -> None:
    """Remove a stored spec. Raises `OSError`.

    Its file is removed first, so that a partly removed spec does not look like a spec. It is listed, and removed later.
    """
    (spec.directory / SPEC).unlink(missing_ok=True)
    remove_tree(spec.directory)
    with contextlib.suppress(OSError):
        spec.directory.parent.rmdir()  # if it is empty


def _bytes(path: Path) -> bytes | None:
    """Return the bytes of a regular file; None if it cannot be read or is too large."""
    try:
        return read_regular(path, MAX_SIZE)
    except OSError:
        return None
