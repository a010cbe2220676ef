"""Add a run to a catalog: only what the catalog lacks is sent, and every byte is checked before it counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import msgspec

from repro_env.environment.secrets import bundles, scanner
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.secrets.scanner import Secret
from repro_env.io.files import FileContents, walk
from repro_env.oci import tar
from repro_env.oci.entry import Entry
from repro_env.oci.layer import Measured
from repro_env.oci.manifest import EMPTY_DATA, Descriptor, blob_of
from repro_env.runs.catalog import contents, part
from repro_env.runs.catalog.contents import LocalFile
from repro_env.runs.catalog.part import CODE, SPEC, SharedRun, StoredPart
from repro_env.runs.catalog.place import Catalog, Contents
from repro_env.runs.records import annotation
from repro_env.runs.records.records import Run
from repro_env.schema.errors import RecordError
from repro_env.schema.image import Blob
from repro_env.schema.progress import Advance, Tell, counted
from repro_env.schema.rundirectory import START, output_of, path_of
from repro_env.store.specs import archive, files
from repro_env.store.store import Store

_HINT = "a run never changes: find out which copy is right, and delete the other one"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was pushed."""

    id: str
    files: int
    """Files that the catalog lacked."""
    blobs: int
    """Blobs that were sent."""
    size: int
    """Bytes that were sent."""
    left_out: tuple[str, ...]
    """Recorded outputs that the catalog does not have, sorted."""


class Sender:
    """Pushes runs to a catalog."""

    def __init__(self, catalog: Catalog, stored: Contents, store: Store, *, not_secret: Sequence[str], tell: Tell) -> None:
        """`stored`: what the catalog has of these runs. `not_secret`: globs of files that contain no secret."""
        self._catalog = catalog
        self._stored = stored
        self._store = store
        self._not_secret = not_secret
        self._tell = tell
        self._present: set[str] = set()
        """Digests of blobs that the catalog has."""
        self._noted: set[str] = set()

    def send(self, run: Run, chosen: Collection[str]) -> Sent:
        """Push a run. `chosen`: the paths of the outputs that go along.

        Raises `RecordError` if the catalog has another run with this ID, or if a file differs from the record, `CaptureError`
        if a file has a secret, `ArtifactError`, `NetworkError`, `DiskError`, `UsageError`.
        """
        local, known = contents.collect(run, chosen, self._store), self._known(run)
        new = {path: file for path, file in local.files.items() if known is None or self._is_new(file, known, run)}
        annotations = [note for note in annotation.of(run.directory) if known is None or note.id not in known.annotations]
        for text in local.remarks:
            if text not in self._noted:
                self._noted.add(text)
                self._tell.warn(f"note: run {run.short}: {text}")
        size = blobs = 0
        if new or annotations:
            self._check_secrets(run, new)
            blobs, size = self._add(run, new, annotations)
        here = {*local.files, *(known.files if known is not None else ())}
        left_out = tuple(output.path for output in contents.outputs_of(run) if path_of(output.path) not in here)
        return Sent(id=run.id, files=len(new), blobs=blobs, size=size, left_out=left_out)

    def _known(self, run: Run) -> SharedRun | None:
        """Return what the catalog has of a run. Parts that cannot be used or lack a blob are sent again, as far as possible."""
        for error in self._stored.damaged.get(run.id, ()):
            self._tell.warn(f"note: a part of run {run.short} in the catalog cannot be used: {error}")
        parts = [stored for stored in self._stored.parts.get(run.id, ()) if all(map(self._has, _blobs_of(stored)))]
        if not any(file.path == START for stored in parts for file in stored.part.files):
            return None
        return part.merge(parts, where=f"{self._catalog.name}: run {run.short}")

    def _is_new(self, local: LocalFile, known: SharedRun, run: Run) -> bool:
        stored = known.files.get(local.file.path)
        # Where a spec was pushed to may change. The first list counts, since it is only a hint.
        if stored is not None and stored != local.file and stored.path != SPEC + files.REMOTE:
            what = f"the catalog has run {run.short} with a different {local.file.path}"
            raise RecordError(what, where=self._catalog.name, hint=_HINT)
        return stored is None

    def _has(self, blob: Blob | Descriptor) -> bool:
        if blob.digest not in self._present and self._catalog.has(blob):
            self._present.add(blob.digest)
        return blob.digest in self._present

    def _check_secrets(self, run: Run, new: dict[str, LocalFile]) -> None:
        """Raise `CaptureError` if the code, the spec, or a small output or log contains a secret."""
        search = SecretSearch(self._not_secret, self._store.facts)
        tree = self._store.layers.path(run.start.source.digest) if CODE in new else None
        if tree is not None:
            search.search_tree(list(walk(tree)), FileContents(tree).chunks)
        if SPEC + files.SPEC in new and run.start.spec_file is not None:
            bundles.check_files(archive.directory_of(run.directory.parent, run.start.spec_file))
        for path, local in new.items():
            output = output_of(path)
            if output is not None and local.file.size < part.SMALL:
                for match in scanner.in_chunks(local.chunks(), output):
                    search.add(Secret(output, *match))
        search.raise_if_found(where=str(run.directory), options="--not-secret")

    def _add(self, run: Run, new: dict[str, LocalFile], annotations: Sequence[annotation.Annotation]) -> tuple[int, int]:
        """Send what the catalog lacks, as a new part. Returns the number of blobs and of bytes that were sent."""
        large, small = part.split([local.file for local in new.values()])

        def packed() -> Iterator[bytes]:
            return tar.write((Entry(file.path, "file", size=file.size), new[file.path].chunks()) for file in small)

        blobs = {
            file.sha256: (Blob(media_type=part.FILE, digest=file.sha256, size=file.size), new[file.path].chunks) for file in large
        }
        archived = None
        if small:
            measured = Measured(packed()).read()
            archived = Blob(media_type=part.TAR, digest=measured.digest, size=measured.size)
            blobs[archived.digest] = (archived, packed)
        elif not large:
            blobs[part.NO_FILES.digest] = (part.NO_FILES, lambda: iter((EMPTY_DATA,)))
        data = part.config_of(run, {path: local.file for path, local in new.items()}, annotations)
        part.read_config(data, run_id=run.id, where=str(run.directory))  # a part that cannot be read must not be sent
        config = blob_of(data, part.TYPE)
        blobs[config.digest] = (config, lambda: iter((data,)))
        missing = [item for item in blobs.values() if not self._has(item[0])]
        with self._tell.progress(sum(blob.size for blob, _ in missing), f"pushing run {run.short}") as advance:
            for blob, chunks in missing:
                self._catalog.write(blob, partial(_counted, chunks, advance))
                self._present.add(blob.digest)
        manifest = part.manifest_of(config, archived, large)
        self._catalog.add(part.tag_of(run.id, manifest), manifest)
        return len(missing), sum(blob.size for blob, _ in missing)


def _blobs_of(stored: StoredPart) -> tuple[Descriptor, ...]:
    return (stored.manifest.config, *stored.manifest.layers)


def _counted(chunks: Callable[[], Iterator[bytes]], advance: Advance) -> Iterator[bytes]:
    return counted(chunks(), advance)
