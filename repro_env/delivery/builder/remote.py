"""Where a spec was pushed to (`remote.json` next to it), and fetching from there what is missing here.

The file names manifests by digest, so a moved tag changes nothing. It holds no credentials. A fetched blob is checked
completely and stored in the spec's `blobs/`, as if the capture had written it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Literal

import msgspec

from repro_env.io.files import atomic_write, read_regular
from repro_env.oci.config import ImageConfig
from repro_env.oci.manifest import Descriptor, Manifest
from repro_env.registry import reference
from repro_env.registry.client import Registry
from repro_env.schema import codec
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import ArtifactError, NetworkError, ReproEnvError, SpecError, UsageError, os_errors_as
from repro_env.schema.text import Digest, Line
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs

FAMILY = "repro-env/remote"
TITLE = "org.opencontainers.image.title"
"""Annotation of a file in an artifact: its path in the spec's directory (OCI image spec, annotations.md)."""
SPEC_TYPE = "application/vnd.repro-env.spec.v1+json"
"""Type of the artifact that refers to an image and holds the files of its spec's directory."""
HINT = (
    "get it once from where the spec was published (`repro-env rebuild FILE|REF`), commit the remote.json that "
    "`repro-env push` writes, or copy the blobs/ directory of the capture next to the spec"
)
_GZIP = (".tar+gzip", ".tar.gzip")


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
    with os_errors_as(SpecError, "the file cannot be read", where=path, hint="delete it and push again"):
        try:
            data = read_regular(path, files.MAX_SIZE)
        except FileNotFoundError:
            return Remote()
    codec.schema_of(data, family=FAMILY, newest=1, where=str(path))
    return codec.decode(data, Remote, where=str(path))


def add(directory: Path, copy: Copy) -> None:
    """Record a copy in `remote.json`, replacing an earlier one in its repository."""
    recorded = read(directory).copies
    copies = [copy, *(other for other in recorded if other.repository != copy.repository)]
    remote = Remote(copies=tuple(sorted(copies, key=lambda copy: copy.repository)))
    if remote.copies != recorded:
        atomic_write(directory / files.REMOTE, codec.pretty(remote))


class Offer(msgspec.Struct, frozen=True):
    """A blob in a registry."""

    registry: Registry
    repository: str
    digest: str
    size: int
    """Size of the download in bytes."""
    is_gzip: bool

    @property
    def where(self) -> str:
        return self.registry.where(self.repository, self.digest)


class Copies:
    """The copies of a spec. Their manifests are read when something is missing, not before. Safe to use from several threads."""

    def __init__(self, directory: Path, received: Callable[[int], None]) -> None:
        """`received` is called with the number of downloaded bytes. Raises `SpecError` if `remote.json` is invalid."""
        self._copies = read(directory).copies
        self._received = received
        self._lock = Lock()
        self._offers: dict[str, list[Offer]] | None = None
        """The blobs of all copies, by the digest of their uncompressed content."""
        self.failures: list[ReproEnvError] = []
        """The errors so far."""

    @property
    def exist(self) -> bool:
        return bool(self._copies)

    def offer(self, digest: str) -> Offer | None:
        """Return where there is a tree or layer with this diff ID, or a wheel with this sha256; None if it is nowhere."""
        return next(iter(self._all().get(digest, ())), None)

    def fetch(self, digest: str, blobs: SpecBlobs, *, size: int | None) -> int:
        """Store the checked blob among the spec's blobs, from the first copy that has it. Returns its uncompressed size.

        The size must be `size` unless that is None. Raises `NetworkError`, `ArtifactError` for wrong bytes, `DiskError`.
        """
        problem: ReproEnvError = ArtifactError("the blob was not found in any registry", where=digest, hint=HINT)
        for offer in self._all().get(digest, ()):
            try:
                return blobs.restore(digest, self._bytes(offer), is_gzip=offer.is_gzip, size=size, where=offer.where)
            except (ArtifactError, NetworkError) as error:  # noqa: PERF203 the next copy may have it
                self._failed(error)
                problem = error
        raise problem

    def explain(self, error: ReproEnvError) -> ReproEnvError:
        """Return the error of a search with the errors of the registries added."""
        if not self.failures:
            return error
        texts = "; ".join(str(failure) for failure in self.failures)
        is_network = all(isinstance(failure, NetworkError) for failure in self.failures)
        kind = NetworkError if is_network and isinstance(error, ArtifactError) else type(error)
        return kind(f"{error.what}; {texts}", where=error.where, hint=self.failures[0].hint or error.hint)

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        for registry in {offer.registry for offers in (self._offers or {}).values() for offer in offers}:
            registry.close()

    def _bytes(self, offer: Offer) -> Iterator[bytes]:
        with contextlib.closing(offer.registry.blob(offer.repository, offer.digest, offer.size)) as chunks:
            for chunk in chunks:
                self._received(len(chunk))
                yield chunk

    def _failed(self, error: ReproEnvError) -> None:
        if str(error) not in map(str, self.failures):
            self.failures.append(error)

    def _all(self) -> dict[str, list[Offer]]:
        with self._lock:
            if self._offers is None:
                self._offers = {}
                for copy in self._copies:
                    self._add(copy, self._offers)
            return self._offers

    def _add(self, copy: Copy, offers: dict[str, list[Offer]]) -> None:
        """Add the blobs of an image and of its artifact. If only one of the two can be read, its blobs are used."""
        try:
            ref = reference.parse(copy.repository)
        except UsageError as error:
            raise SpecError(error.what, where=f"{files.REMOTE}: {copy.repository}", hint="delete it and push again") from None
        registry = Registry(ref.host)
        for digest, blobs_of in ((copy.image, _layers), (copy.spec, _files)):
            try:
                manifest = registry.parsed(ref.repository, digest)[0]
                for content, blob, is_gzip in blobs_of(manifest, registry, ref.repository):
                    offer = Offer(registry, ref.repository, blob.digest, blob.size, is_gzip)
                    offers.setdefault(content, []).append(offer)
            except (ArtifactError, NetworkError, SpecError) as error:  # noqa: PERF203 the other manifest may be there
                self._failed(error if not isinstance(error, SpecError) else ArtifactError(error.what, where=error.where))


_Contents = Iterator[tuple[str, Descriptor, bool]]
"""The digest of the uncompressed content of each blob, the blob, and whether it is gzip."""


def _layers(image: object, registry: Registry, repository: str) -> _Contents:
    if isinstance(image, Manifest):
        config = codec.decode(registry.small(repository, image.config), ImageConfig, where=f"{registry.host}/{repository}")
        for diff_id, layer in zip(config.diff_ids, image.layers, strict=False):
            if layer.media_type.endswith((*_GZIP, ".tar")):
                yield diff_id, layer, layer.media_type.endswith(_GZIP)


def _files(artifact: object, _registry: Registry, _repository: str) -> _Contents:
    for file in artifact.layers if isinstance(artifact, Manifest) else ():
        directory, _, name = (file.annotations or {}).get(TITLE, "").rpartition("/")
        if directory == files.BLOBS and files.BLOB.fullmatch(name):
            yield f"sha256:{name.removesuffix('.gz')}", file, name.endswith(".gz")
