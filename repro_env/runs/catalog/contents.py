"""The files of a recorded run that go into a catalog, and where their bytes are on this machine."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import chunks_of, sha256_of
from repro_env.oci import tar
from repro_env.oci.layer import Measured
from repro_env.runs.catalog.part import CODE, SPEC, SharedFile
from repro_env.runs.records import records
from repro_env.runs.records.records import Run
from repro_env.schema import spec as specs
from repro_env.schema.errors import RecordError, ReproEnvError, os_errors_as
from repro_env.schema.run import End, Output, Start
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE, END, START, TRACE, VERIFIED, path_of
from repro_env.store.specs import archive, files
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

_SIZE = "layer-tar-size"
VERDICT = re.compile(rf"{VERIFIED}/\d{{8}}T\d{{6}}Z-[0-9a-f]{{8}}\.(?:json|txt)")
"""Files that the record does not name: people verify a run after it ended."""


class LocalFile(msgspec.Struct, frozen=True):
    file: SharedFile
    chunks: Callable[[], Iterator[bytes]]
    """The bytes, checked. Raises `RecordError` if they are not those of the file."""


class LocalRun(msgspec.Struct, frozen=True):
    files: dict[str, LocalFile]
    """By the path in the catalog."""
    remarks: tuple[str, ...]
    """What others need and is not on this machine, in clauses. Missing outputs are not listed."""


def recorded_files(start: Start, end: End | None) -> dict[str, str]:
    """Return the sha256 of every file that a record names, by its path in the run's directory, except of `start.json` and `end.json`.

    The record may be a stranger's: a log or a trace with the name of another file does not count.
    """
    found = {} if start.checkpoints_before is None else {CHECKPOINTS_BEFORE: start.checkpoints_before}
    if end is not None:
        found |= {} if end.checkpoints_after is None else {CHECKPOINTS_AFTER: end.checkpoints_after}
        found |= {output.path: output.sha256 for output in end.console if records.is_log(output.path)}
        found |= {f"{TRACE}/{output.path}": output.sha256 for output in end.trace if output.path[0] != "/"}
        found |= {path_of(output.path): output.sha256 for output in end.outputs}
    return found


def collect(run: Run, chosen: Collection[str], store: Store) -> LocalRun:
    """Collect the files of a run. `chosen`: the paths of the outputs that go along. Raises `RecordError`, `SpecError`."""
    start, end, directory = run.start, run.end, run.directory
    found: dict[str, LocalFile] = {}
    remarks: list[str] = []

    def add(path: str, sha256: str) -> None:
        """Add a file of the run's directory, if it is there."""
        with contextlib.suppress(OSError):
            size = (directory / path).lstat().st_size
            found[path] = _local(SharedFile(path=path, sha256=sha256, size=size), directory / path, directory)

    add(START, run.start_digest)
    if end is not None:
        add(END, run.end_digest)
    left_out = {path_of(output.path) for output in outputs_of(run) if output.path not in chosen}
    for path, sha256 in recorded_files(start, end).items():
        if path not in left_out:
            add(path, sha256)
    for verdict in sorted((directory / VERIFIED).glob("*")):
        name = f"{VERIFIED}/{verdict.name}"
        if VERDICT.fullmatch(name) and verdict.is_file() and not verdict.is_symlink():
            add(name, f"sha256:{sha256_of(verdict)}")
    bundled = _add_spec(run, store, found, remarks)
    if start.source.digest not in bundled:
        _add_code(start, store, found, remarks)
    return LocalRun(found, tuple(remarks))


def outputs_of(run: Run) -> Sequence[Output]:
    """Return the recorded outputs of a run; none if it was interrupted."""
    return run.end.outputs if run.end is not None else ()


def _local(file: SharedFile, path: Path, below: Path) -> LocalFile:
    def chunks() -> Iterator[bytes]:
        content = Measured(chunks_of(path, below=below))
        with os_errors_as(RecordError, "this file cannot be read", where=path, hint="leave it out with --outputs, or restore it"):
            yield from content
        if (content.digest, content.size) != (file.sha256, file.size):
            hint = "leave it out with --outputs, or restore it"
            raise RecordError("this file differs from the record: it was changed after the run", where=str(path), hint=hint)

    return LocalFile(file, chunks)


def _add_spec(run: Run, store: Store, found: dict[str, LocalFile], remarks: list[str]) -> set[str]:
    """Add the spec that is kept next to the run, with the blobs that are there. Returns the digests of these blobs."""
    digest = run.start.spec_file
    directory = None if digest is None else archive.directory_of(run.directory.parent, digest)
    if digest is None or directory is None or not (directory / files.SPEC).is_file():
        remarks.append("its spec is not next to the runs")
        return set()
    data = archive.read(run.directory.parent, digest)
    spec = specs.read(data, where=str(directory / files.SPEC))
    blobs = SpecBlobs(directory / files.BLOBS)
    paths = {name: path for name in sorted(spec.bundled) if (path := blobs.path(name)) is not None}
    local = {files.SPEC: directory / files.SPEC, **{f"{files.BLOBS}/{path.name}": path for path in paths.values()}}
    if len(paths) < len(spec.bundled):
        remote = directory / files.REMOTE
        if remote.is_file() and not remote.is_symlink():
            local[files.REMOTE] = remote  # where the missing ones can be downloaded
        else:
            remarks.append(
                f"{len(spec.bundled) - len(paths)} files that its spec bundles are not here, so others may not be able to rebuild its image"
            )
    for name, path in local.items():
        file = SharedFile(path=SPEC + name, sha256=f"sha256:{store.hashes.of_file(path)}", size=path.stat().st_size)
        found[file.path] = _local(file, path, path.parent)
    return set(paths)


def _add_code(start: Start, store: Store, found: dict[str, LocalFile], remarks: list[str]) -> None:
    """Add the code of the run from the store."""
    digest = start.source.digest
    if store.layers.path(digest) is None:
        remarks.append("its code is not in the store, so others need it from its commit")
        return

    def chunks() -> Iterator[bytes]:
        try:
            yield from tar.write(store.layers.members(digest))
        except (OSError, ReproEnvError) as error:
            hint = "the store is damaged: `repro-env store verify`"
            raise RecordError(f"the code of the run cannot be read: {error}", where=digest, hint=hint) from None

    known = store.facts.get(_SIZE, digest)
    size = Measured(chunks()).read().size if known is None else int(known)
    store.facts.put(_SIZE, digest, str(size).encode())
    found[CODE] = LocalFile(SharedFile(path=CODE, sha256=digest, size=size), chunks)
