"""The command `repro-env push`: send the image, then an artifact that refers to it and has the files of the spec's directory.

A tree that the spec bundles and that is a layer of the image is sent only once. A user of the image finds its spec with the
referrers API of the registry; a user of the spec finds the image in `remote.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from repro_env.api.pack import collect
from repro_env.api.send import remarks
from repro_env.compare.environments import code
from repro_env.delivery.builder import layers, remote, sinks
from repro_env.delivery.builder.remote import SPEC_TYPE, TITLE, Copy
from repro_env.delivery.builder.sinks import SentImage
from repro_env.delivery.builder.sources import Sources
from repro_env.delivery.documents import provenance, sbom
from repro_env.delivery.targets.registry import RegistryOutput
from repro_env.environment.secrets import bundles
from repro_env.io.files import chunks_of, read_regular, sha256_of
from repro_env.oci.manifest import Descriptor, blob_of
from repro_env.registry import referrers
from repro_env.registry.client import Registry
from repro_env.registry.reference import parse
from repro_env.schema.image import GZIP, Blob
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.argument import SpecName, open_spec
from repro_env.store.filenames import hex_of
from repro_env.store.specs import files as specfiles
from repro_env.store.store import Store

BYTES = "application/octet-stream"
PROVENANCE = "provenance.json"
"""Derived from the spec and the image, so it is only in the registry."""
TYPES = {
    "spec.json": SPEC_TYPE,
    "sbom.cdx.json": sbom.MEDIA_TYPE.partition(";")[0],
    PROVENANCE: provenance.MEDIA_TYPE,
    "pylock.toml": "application/toml",
}
"""Media types of the artifact's files; other files have `TEXT`."""
TEXT = "text/plain"
SEPARATE = {"sbom.cdx.json", PROVENANCE}
"""Files that are also separate referrers of the image, with their own types, because other tools look for them there."""


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `push`."""

    reference: str
    image: str
    """`host/name@digest` of the image's manifest."""
    spec: str
    """`host/name@digest` of the artifact's manifest."""
    image_id: str
    spec_digest: str
    sent: int
    """Bytes of the blobs that were sent."""
    blobs: int
    """Number of blobs that were sent."""


def push(
    reference: str, spec: SpecName = None, *, frozen: bool = False, store: Store | None = None, tell: Tell = SILENT
) -> Pushed:
    """Send a spec's image and the files of its directory to a registry (HOST/NAME:TAG), and write their location to `remote.json`.

    Raises `UsageError` if the reference has a digest, `PlatformError`, `ArtifactError`, `NetworkError`, `BuildError`,
    `CaptureError` if a sent file has a secret, and `SourceError` if the code next to the spec differs from the captured
    code, unless `frozen`.
    """
    to, store = parse(reference), store or Store.open()
    opened = open_spec(spec, store=store, tell=tell)
    layers.check_platform(opened.spec)
    code.check_unchanged(opened.spec, opened.directory, frozen=frozen, store=store)
    bundles.check_files(opened.directory)
    for note in remarks(opened.spec):
        tell(note)
    with Registry(to.host) as registry, closing(RegistryOutput(to)) as output:
        image = sinks.send(opened.spec, opened.directory, store, output, tell=tell)
        subject = image.image.manifest_blob
        sending = _Sending(registry, to.repository)
        files = {
            **_files(opened.spec, opened.directory, image, sending),
            **_blobs(opened.spec, opened.directory, image, sending, store=store, tell=tell),
        }
        described = {
            name: Descriptor(blob.media_type, blob.digest, blob.size, None, {TITLE: name}) for name, blob in sorted(files.items())
        }
        artifact = referrers.attach(registry, to.repository, subject, SPEC_TYPE, list(described.values()))
        for name in sorted(SEPARATE & files.keys()):
            referrers.attach(registry, to.repository, subject, files[name].media_type, [described[name]])
    copy = Copy(repository=to.name, image=subject.digest, spec=artifact.digest)
    try:
        remote.add(opened.directory, copy)
    except PermissionError as error:
        tell.warn(
            f"note: {opened.directory / specfiles.REMOTE} cannot be written, so the spec does not name this copy: {error.strerror}"
        )
    return Pushed(
        reference=f"{to.name}:{to.tag}",
        image=f"{to.name}@{subject.digest}",
        spec=f"{to.name}@{artifact.digest}",
        image_id=image.image_id,
        spec_digest=opened.spec.digest,
        sent=sum(layer.blob.size for layer in image.layers if layer.diff_id in image.made) + sending.size,
        blobs=len(image.made) + sending.blobs,
    )


class _Sending:
    """Send blobs that the registry lacks, and count them."""

    def __init__(self, registry: Registry, repository: str) -> None:
        self._registry = registry
        self._repository = repository
        self.size = 0
        self.blobs = 0

    def send(self, blob: Blob, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        """Raises `ArtifactError` if the bytes are not this blob."""
        if not self._registry.has(self._repository, blob.digest, blob.size):
            self._registry.upload(self._repository, chunks, blob)
            self.size += blob.size
            self.blobs += 1
        return blob


def _files(spec: Spec, directory: Path, image: SentImage, sending: _Sending) -> dict[str, Blob]:
    """Send the spec's files and the image's provenance, but not `remote.json`, since that names this copy."""
    files = {
        name: read_regular(directory / name, specfiles.MAX_SIZE)
        for name in specfiles.present(directory)
        if name != specfiles.REMOTE
    }
    files[PROVENANCE] = provenance.render(spec, image.image)
    return {
        name: sending.send(blob_of(data, TYPES.get(name, TEXT)), lambda data=data: iter((data,)))  # type: ignore[misc]
        for name, data in files.items()
    }


def _blobs(spec: Spec, directory: Path, image: SentImage, sending: _Sending, *, store: Store, tell: Tell) -> dict[str, Blob]:
    """Send the blobs that the spec bundles; return them by path. Trees that are layers of the image were sent with it."""
    trees = {tree.sha256 for tree in spec.trees.values()}
    packed = {layer.diff_id: layer.blob for layer in image.layers if layer.diff_id in trees}
    blobs = {f"{specfiles.BLOBS}/{hex_of(digest)}.gz": blob for digest, blob in packed.items()}
    with Sources(spec, directory, store) as sources:
        files = collect(sources, spec, everything=False, without=packed, tell=tell)
    for name, path in files.items():
        media_type = GZIP if name.endswith(".gz") else BYTES
        blob = Blob(media_type=media_type, digest=f"sha256:{sha256_of(path)}", size=path.stat().st_size)
        blobs[f"{specfiles.BLOBS}/{name}"] = sending.send(blob, partial(chunks_of, path))
    return blobs
