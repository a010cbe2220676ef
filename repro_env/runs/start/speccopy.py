"""Keep a run's spec next to its record, since a later capture may overwrite the original and the blobs that it bundles."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import atomic_write, open_regular, read_regular, room
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox.workspace import copy_file
from repro_env.schema import codec
from repro_env.schema import spec as model
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.specs import archive, files
from repro_env.store.specs.blobs import BLOB_DIGEST, SpecBlobs, file_key
from repro_env.store.specs.files import MAX_SIZE, SPEC
from repro_env.store.store import Store
from repro_env.store.temporary import Temp

_PROVEN = ("bundled", BLOB_DIGEST)
"""Kinds of facts that `store.specs.blobs` stores under the key of a blob's file."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def keep(options: RunOptions, spec: Spec, directory: Path, runs: Path, *, store: Store, tell: Tell) -> str | None:
    """Keep the spec in `directory` next to its runs; return the sha256 of its file (`Start.spec_file`).

    Returns None if the run itself is not kept. Bundled blobs are hard-linked, or copied where links are impossible; a
    warning names a blob that cannot be kept. Raises `RecordError`, `DiskError` if the spec itself cannot be written.
    """
    if not options.keeps_record:
        return None
    digest = archive.write(runs, _bytes(spec, directory))
    to = archive.directory_of(runs, digest)
    problems: list[str] = []
    with _collect(problems):
        _keep_blobs(spec, directory, to, store, problems)
    if problems:
        why = shorten(problems, 1)
        tell.warn(f"note: some files that the spec bundles could not be kept in {to}, so a later capture may delete them: {why}")
    return digest


@contextlib.contextmanager
def _collect(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems.append(str(error.strerror))
    except ReproEnvError as error:
        problems.append(error.what)


def _bytes(spec: Spec, directory: Path) -> bytes:
    """Return the bytes of the spec's file, or of `spec` itself if the file has changed."""
    encoded = codec.pretty(spec)
    with contextlib.suppress(OSError, ReproEnvError):
        path = directory / SPEC
        data = read_regular(path, MAX_SIZE)
        if data == encoded or _without_source(model.read(data, where=str(path))) == _without_source(spec):
            return data
    return encoded


def _without_source(spec: Spec) -> Spec:
    """Return the parts that do not change when a spec is adapted to repeat a run: all but the source and the data."""
    source = spec.observed.source
    if source is not None:
        source = msgspec.structs.replace(source, path="/", tree=spec.identity.base)
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source, data=()))


def _keep_blobs(spec: Spec, directory: Path, to: Path, store: Store, problems: list[str]) -> None:
    """Keep `remote.json` and every bundled blob; add a blob that cannot be kept to `problems`. Raises `OSError`, `DiskError`."""
    if os.path.realpath(directory) == os.path.realpath(to):
        return
    remote = directory / files.REMOTE
    if os.path.lexists(remote):
        data = read_regular(remote, files.MAX_SIZE)
        kept = to / files.REMOTE
        if not kept.is_file() or read_regular(kept, files.MAX_SIZE) != data:
            atomic_write(kept, data)
    source, target = SpecBlobs(directory / files.BLOBS), SpecBlobs(to / files.BLOBS)
    missing = [path for digest in sorted(spec.bundled) if (path := source.path(digest)) and target.path(digest) is None]
    if not missing:
        return
    with room(to):
        target.directory.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError), (target.directory / ".gitignore").open("x", encoding="ascii") as file:
            file.write("*\n")
    for path in missing:
        with _collect(problems), room(to):
            os.close(open_regular(path))
            _link(path, target.directory / path.name, store)


def _link(path: Path, to: Path, store: Store) -> None:
    """Make `to` a second name of a blob. A blob's file is replaced, never written to, so replacing one leaves the other as it is."""
    before = file_key(path)
    try:
        os.link(path, to)
    except FileExistsError:
        return  # another run linked it first
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with Temp(to.parent).directory() as temporary:
            copy_file(path, temporary / "blob")
            _flush(temporary / "blob")
            (temporary / "blob").replace(to)
        return
    # A new name changes the file's ctime, which is part of its key. The bytes are the same, so their facts still hold.
    for kind in _PROVEN:
        fact = store.facts.get(kind, before)
        if fact is not None:
            store.facts.put(kind, file_key(path), fact)


def _flush(path: Path) -> None:
    """Write a copy to disk: it may later be the only copy."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
