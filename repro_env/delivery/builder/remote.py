"""Where a spec was pushed to (`remote.json` next to it), and fetching from there what is missing here.

The file names manifests by digest, so a moved tag changes nothing. It holds no credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

from repro_env.delivery.builder.blobsource import Offer
from repro_env.delivery.builder.plan import Origin
from repro_env.io.files import atomic_write, read_regular
from repro_env.oci.config import ImageConfig
from repro_env.oci.manifest import Index, Manifest, parse
from repro_env.registry import reference
from repro_env.registry.client import Registry
from repro_env.registry.reference import Reference
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, NetworkError, SpecError, UsageError
from repro_env.schema.image import Blob
from repro_env.schema.text import Digest, Line
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs

FAMILY = "repro-env/remote"
TITLE = "org.opencontainers.image.title"
"""Annotation of a file in an artifact: its path in the spec's directory (OCI image spec, annotations.md)."""
SPEC_TYPE = "application/vnd.repro-env.spec.v1+json"
"""Type of the artifact that refers to an image and holds the files of its spec's directory."""
_ORIGIN: Origin = "registry"
_GZIP = (".tar+gzip", ".tar.gzip")
_HINT = "push again from where the spec's blobs are, or copy its blobs/ directory next to the spec"


class Copy(Frozen, frozen=True, kw_only=True):
    """An image and its spec in one repository."""

    repository: Line
    """`host[:port]/name`."""
    image: Digest
    """Digest of the image's manifest."""
    spec: Digest
    """Digest of the manifest of the artifact that refers to the image."""


class Remote(Frozen, frozen=True, kw_only=True):
    """The content of `remote.json`."""

    schema: Literal["repro-env/remote/1"] = "repro-env/remote/1"
    copies: tuple[Copy, ...] = ()
    """The last pushed copy of each repository, sorted by repository."""


def read(directory: Path) -> Remote:
    """Read `remote.json` of a directory. Return no copies if the file is missing. Raises `SpecError` if it is invalid."""
    path = directory / files.REMOTE
    try:
        data = read_regular(path, files.MAX_SIZE)
    except FileNotFoundError:
        return Remote()
    except OSError as error:
        raise SpecError(f"the file cannot be read: {error.strerror}", where=str(path), hint="delete it and push again") from None
    codec.schema_of(data, family=FAMILY, newest=1, where=str(path))
    return codec.decode(data, Remote, where=str(path))


def add(directory: Path, copy: Copy) -> bool:
    """Record a copy in `remote.json`, replacing an earlier one in its repository. Returns False if it is there already."""
    recorded = read(directory).copies
    copies = tuple(
        sorted((copy, *(other for other in recorded if other.repository != copy.repository)), key=lambda copy: copy.repository)
    )
    if copies == recorded:
        return False
    atomic_write(directory / files.REMOTE, codec.pretty(Remote(copies=copies)))
    return True


_Blob = tuple[Blob, bool]
"""The descriptor of a blob, and whether it is gzip."""


class RegistryCopy:
    """One copy as a `blobsource.BlobSource`. Its manifests are read when something is missing, not before."""

    def __init__(self, copy: Copy) -> None:
        """Raises `SpecError` for an invalid repository name."""
        self._copy = copy
        try:
            self._ref: Reference = reference.parse(f"{copy.repository}@{copy.image}")
        except UsageError as error:
            raise SpecError(error.what, where=f"{files.REMOTE}: {copy.repository}", hint="delete it and push again") from None
        self._registry = Registry(self._ref.host)
        self._lock = Lock()
        self._by_digest: dict[str, _Blob] | None = None
        self._failure: ArtifactError | NetworkError | None = None
        self._stopped = False
        self.fetched = 0
        self.layers = True

    def offer(self, digest: str) -> Offer | None:
        blob = self._blobs().get(digest)
        if blob is not None:
            return Offer(_ORIGIN, f"{self._ref.name}@{blob[0].digest}", blob[0].size)
        if self._failure is not None:
            raise self._failure
        return None

    def fetch(self, digest: str, blobs: SpecBlobs, *, size: int | None) -> int:
        blob, is_gzip = self._blobs()[digest]
        where = f"{self._ref.name}@{blob.digest}"
        return blobs.restore(digest, self._bytes(blob, where), is_gzip=is_gzip, size=size, where=where)

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._registry.close()

    def _bytes(self, blob: Blob, where: str) -> Iterator[bytes]:
        for chunk in self._registry.blob(self._ref.repository, blob.digest, blob.size):
            if self._stopped:
                raise NetworkError(
                    "the download was stopped", where=where, hint="try again: complete files are not downloaded again"
                )
            with self._lock:
                self.fetched += len(chunk)
            yield chunk

    def _blobs(self) -> dict[str, _Blob]:
        """Return the blobs of the image and of its artifact, by the digest of their uncompressed content.

        If only one of the two is still in the registry, its blobs are used.
        """
        with self._lock:
            if self._by_digest is None:
                image, spec = self._read_blobs(self._copy.image, self._layers), self._read_blobs(self._copy.spec, self._files)
                self._by_digest = {**image, **spec}
            return self._by_digest

    def _read_blobs(self, digest: str, blobs: Callable[[Manifest], Iterator[tuple[str, _Blob]]]) -> dict[str, _Blob]:
        """Return the blobs of a manifest; none, and keep the error, if the manifest cannot be read."""
        try:
            return dict(blobs(self._manifest(digest)))
        except (ArtifactError, NetworkError) as error:
            self._failure = error
            return {}

    def _manifest(self, digest: str) -> Manifest:
        data, media_type, _ = self._registry.manifest(self._ref.repository, digest)
        manifest = parse(data, media_type, where=self._registry.where(self._ref.repository, digest))
        if isinstance(manifest, Index):
            raise ArtifactError("the manifest is an index, not an image", where=f"{self._ref.name}@{digest}", hint=_HINT)
        return manifest

    def _layers(self, image: Manifest) -> Iterator[tuple[str, _Blob]]:
        where = f"{self._ref.name}@{self._copy.image}"
        try:
            config = codec.decode(self._registry.small(self._ref.repository, image.config), ImageConfig, where=where)
        except SpecError as error:
            raise ArtifactError(error.what, where=where, hint=_HINT) from None
        if len(config.diff_ids) != len(image.layers):
            raise ArtifactError("the config of the image does not match its layers", where=where, hint=_HINT)
        for diff_id, layer in zip(config.diff_ids, image.layers, strict=True):
            if layer.media_type.endswith((*_GZIP, ".tar")):
                yield diff_id, (layer.blob, layer.media_type.endswith(_GZIP))

    def _files(self, artifact: Manifest) -> Iterator[tuple[str, _Blob]]:
        for file in artifact.layers:
            directory, _, name = (file.annotations or {}).get(TITLE, "").rpartition("/")
            if directory == files.BLOBS and files.BLOB.fullmatch(name):
                yield f"sha256:{name.removesuffix('.gz')}", (file.blob, name.endswith(".gz"))
