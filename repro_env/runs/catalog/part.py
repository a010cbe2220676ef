"""The format of a run in a catalog: OCI artifacts, each a part of the run. Pure.

A part is a manifest. Its config lists files of the run by path and sha256, and has the notes and tags. Files of less than `SMALL`
bytes are in one tar; every other file is a blob of its own, and so is everything that runs share. A part is never changed: the
tag of a manifest has the ID of the run and the digest of the manifest. A later push with more files adds a part with these files.
So a run is the union of its parts, in any order, and two pushes at the same time cannot lose anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from repro_env.oci.manifest import EMPTY, EMPTY_DATA, Descriptor, Manifest, as_descriptor, blob_of, parse
from repro_env.runs.records import ids
from repro_env.runs.records.annotation import Annotation
from repro_env.runs.records.records import Run
from repro_env.runs.records.summary import Summary, summary_of
from repro_env.schema import codec
from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, RecordError
from repro_env.schema.image import MANIFEST, Blob
from repro_env.schema.rundirectory import END, START
from repro_env.schema.text import Digest

TYPE = "application/vnd.repro-env.run.v1+json"
"""Type of the artifact and of its config."""
TAR = "application/vnd.oci.image.layer.v1.tar"
FILE = "application/octet-stream"
NO_FILES = blob_of(EMPTY_DATA, EMPTY)
"""The only blob of a part that has only notes (OCI image spec)."""
SMALL = 1 << 20
SPEC = "spec/"
"""Prefix of the spec's directory."""
CODE = "source.tar"
"""The code of the run as a layer tar, whose sha256 is `SourceFact.digest`, if the spec does not bundle it."""
LARGEST_CONFIG = 64 << 20
_MOST_BLOBS = 900
"""Blobs of a part besides the tar; further files are in the tar. `Manifest` allows 1,000."""
_FAMILY = "repro-env/shared-run"
_HINT = "push the run again from where it ran, or delete this part of it from the catalog"
_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TAG = re.compile(rf"run-({_ID})-([0-9a-f]{{64}})")
_Path = Annotated[str, Meta(pattern=r"\A(?!/)(?:(?:\A|/)(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+\Z", max_length=4100)]
"""A `RelPath`, with a prefix."""


class SharedFile(Frozen, frozen=True, kw_only=True):
    path: _Path
    """In the directory of the run; `SPEC` and `CODE` for what is elsewhere."""
    sha256: Digest
    size: Size


class Part(Frozen, frozen=True, kw_only=True):
    """The config of a part."""

    schema: Literal["repro-env/shared-run/1"]
    id: Annotated[str, Meta(pattern=rf"\A{_ID}\Z")]
    files: tuple[SharedFile, ...]
    """Sorted by path."""
    annotations: tuple[Annotation, ...]
    """Sorted by id."""
    summary: Summary | None
    """In a part with a file of the record."""


class Tag(msgspec.Struct, frozen=True):
    """The tag of a part: `run-<ID>-<hex digest of the manifest>`."""

    name: str
    run: str
    """The ID."""
    digest: str
    """Of the manifest."""


class StoredPart(msgspec.Struct, frozen=True):
    """A part in a catalog."""

    tag: str
    manifest: Manifest
    part: Part

    @property
    def tar(self) -> Descriptor | None:
        return next((layer for layer in self.manifest.layers if layer.media_type == TAR), None)

    @property
    def blobs(self) -> dict[str, Descriptor]:
        """The files that are blobs, by digest."""
        return {layer.digest: layer for layer in self.manifest.layers if layer.media_type == FILE}


class SharedRun(msgspec.Struct, frozen=True):
    """A run in a catalog: the union of its parts."""

    id: str
    summary: Summary
    files: dict[str, SharedFile]
    annotations: dict[str, Annotation]
    parts: tuple[StoredPart, ...]

    @property
    def short(self) -> str:
        return ids.short(self.id)


def tag_of(run_id: str, manifest: bytes) -> str:
    return f"run-{run_id}-{blob_of(manifest, MANIFEST).digest.removeprefix('sha256:')}"


def parse_tag(name: str) -> Tag | None:
    """Return the tag of a part; None for a tag of something else."""
    match = _TAG.fullmatch(name)
    return None if match is None else Tag(name, match[1], f"sha256:{match[2]}")


def is_shared(path: str) -> bool:
    """Whether other runs may have the same file."""
    return path.startswith(SPEC) or path == CODE


def split(files: Sequence[SharedFile]) -> tuple[list[SharedFile], list[SharedFile]]:
    """Return the files that are blobs, and those that are in the tar, sorted by the bytes of their paths."""
    large = [file for file in files if is_shared(file.path) or file.size >= SMALL]
    large = sorted(large, key=lambda file: (not is_shared(file.path), -file.size, file.path))[:_MOST_BLOBS]
    separate = {file.path for file in large}
    small = [file for file in files if file.path not in separate]
    return large, sorted(small, key=lambda file: file.path.encode())


def manifest_of(config: Blob, tar: Blob | None, files: Sequence[SharedFile]) -> bytes:
    """Return the manifest of a part as canonical JSON. `files`: those that are blobs."""
    blobs = {file.sha256: Blob(media_type=FILE, digest=file.sha256, size=file.size) for file in files}
    layers = [*([tar] if tar is not None else []), *(blobs[digest] for digest in sorted(blobs))]
    return codec.canonical(
        {
            "artifactType": TYPE,
            "config": as_descriptor(config),
            "layers": [as_descriptor(layer) for layer in layers or [NO_FILES]],
            "mediaType": MANIFEST,
            "schemaVersion": 2,
        }
    )


def read_manifest(data: bytes, *, where: str) -> Manifest:
    """Parse the manifest of a part. Raises `ArtifactError`."""
    manifest = parse(data, MANIFEST, where=where)
    if not isinstance(manifest, Manifest) or manifest.config.media_type != TYPE:
        raise ArtifactError("this is not a run that repro-env pushed", where=where, hint=_HINT)
    if manifest.config.size > LARGEST_CONFIG:
        what = f"the list of files has {manifest.config.size:,} bytes, but at most {LARGEST_CONFIG:,} are allowed"
        raise ArtifactError(what, where=where, hint=_HINT)
    return manifest


def read_config(data: bytes, *, run_id: str, where: str) -> Part:
    """Parse the config of a part. Raises `SpecError`, `SpecVersionError`, and `ArtifactError` for what its type cannot express."""
    codec.schema_of(data, family=_FAMILY, newest=1, where=where)
    part = codec.decode(data, Part, where=where)
    if part.id != run_id:
        raise ArtifactError(f"this part is of run {part.id}, but its tag names run {run_id}", where=where, hint=_HINT)
    paths = [file.path for file in part.files]
    if any(not re.fullmatch(_ID, note.id) for note in part.annotations):  # it becomes the name of a file
        raise ArtifactError("the ID of a note is not a UUID", where=where, hint=_HINT)
    if len(set(paths)) != len(paths):
        raise ArtifactError("the list of files has a path twice", where=where, hint=_HINT)
    return part


def merge(parts: Sequence[StoredPart], *, where: str) -> SharedRun:
    """Join the parts of a run. Raises `RecordError` if two of them have different files at one path, or if none has the record."""
    files: dict[str, SharedFile] = {}
    owners: dict[str, str] = {}
    annotations: dict[str, Annotation] = {}
    ordered = sorted(parts, key=lambda part: part.tag)
    for stored in ordered:
        for file in stored.part.files:
            if files.setdefault(file.path, file) != file:
                what = f"two pushes have a different {file.path}: {owners[file.path]} and {stored.tag}"
                raise RecordError(what, where=where, hint="find out which is right, and delete the other one from the catalog")
            owners.setdefault(file.path, stored.tag)
        for annotation in stored.part.annotations:
            if annotations.setdefault(annotation.id, annotation) != annotation:
                what = f"two pushes have a different note {annotation.id}; one of them is in {stored.tag}"
                raise RecordError(what, where=where, hint="find out which is right, and delete the other one from the catalog")
    summary = _summary(ordered)
    if START not in files or summary is None:
        raise RecordError("the catalog does not have the record of this run, only files of it", where=where, hint=_HINT)
    return SharedRun(ordered[0].part.id, summary, files, dict(sorted(annotations.items())), tuple(ordered))


def _summary(parts: Sequence[StoredPart]) -> Summary | None:
    """Return the summary of the part with the end of the run, or else of that with its start."""
    for name in (END, START):
        for stored in parts:
            if any(file.path == name for file in stored.part.files) and stored.part.summary is not None:
                return stored.part.summary
    return None


def config_of(run: Run, files: Mapping[str, SharedFile], annotations: Sequence[Annotation]) -> bytes:
    """Return the config of a part as canonical JSON."""
    part = Part(
        schema="repro-env/shared-run/1",
        id=run.id,
        files=tuple(file for _, file in sorted(files.items())),
        annotations=tuple(sorted(annotations, key=lambda annotation: annotation.id)),
        summary=summary_of(run) if files.keys() & {START, END} else None,
    )
    return codec.canonical(part)
