"""Sources of trees, layers and wheels that are missing next to a spec, such as a registry that it was pushed to.

A fetched blob is checked completely and stored in the spec's `blobs/`, as if the capture had written it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol

import msgspec

from repro_env.delivery.builder.plan import Origin
from repro_env.schema.errors import ArtifactError, NetworkError, ReproEnvError
from repro_env.store.specs.blobs import SpecBlobs

HINT = (
    "get it once from where the spec was published (`repro-env rebuild FILE|REF`), commit the remote.json that "
    "`repro-env push` writes, or copy the blobs/ directory of the capture next to the spec"
)


class Offer(msgspec.Struct, frozen=True):
    """A blob that a source has."""

    origin: Origin
    where: str
    """Where the blob is, for messages; without credentials."""
    size: int
    """Size of the download in bytes."""


class BlobSource(Protocol):
    """A source outside of the spec's directory that has trees, layers or wheels. Safe to use from several threads."""

    fetched: int
    """Bytes downloaded so far."""
    layers: bool
    """Whether it also has the layers of wheels."""

    def offer(self, digest: str) -> Offer | None:
        """Return the offer for a tree or layer with this diff ID, or a wheel with this sha256; None if it does not have it.

        Raises `NetworkError`, `ArtifactError`.
        """
        ...

    def fetch(self, digest: str, blobs: SpecBlobs, *, size: int | None) -> int:
        """Store the checked blob among the spec's blobs. Returns its uncompressed size, which must be `size` unless None.

        Raises `NetworkError`, `ArtifactError` for wrong bytes, `DiskError`.
        """
        ...

    def stop(self) -> None:
        """Make running downloads end soon."""
        ...

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        ...


class BlobSources:
    """All sources of a spec, nearest first."""

    def __init__(self, blob_sources: Sequence[BlobSource]) -> None:
        self._blob_sources = blob_sources
        self._lock = Lock()
        self.failures: list[ReproEnvError] = []
        """The errors of sources so far."""

    @property
    def layers(self) -> bool:
        """Whether a source may have the layers of wheels."""
        return any(source.layers for source in self._blob_sources)

    @property
    def fetched(self) -> int:
        return sum(source.fetched for source in self._blob_sources)

    def offer(self, digest: str) -> Offer | None:
        """Return the first offer for a digest, or None."""
        return next((offer for _, offer in self._offers(digest)), None)

    def fetch(self, digest: str, blobs: SpecBlobs, *, size: int | None) -> int:
        """As `BlobSource.fetch`, by the first of those that offer it and can. Raises what the last of them raised."""
        problem: ReproEnvError = ArtifactError("the blob was not found anywhere", where=digest, hint=HINT)
        for source, _ in self._offers(digest):
            try:
                return source.fetch(digest, blobs, size=size)
            except (ArtifactError, NetworkError) as error:  # noqa: PERF203 the next source may have it
                self._failed(error)
                problem = error
        raise problem

    def explain(self, error: ReproEnvError) -> ReproEnvError:
        """Return an error of another search, with the errors of these sources added."""
        if not self.failures:
            return error
        failures = "; ".join(str(failure) for failure in self.failures)
        return type(error)(f"{error.what}; {failures}", where=error.where, hint=self.failures[0].hint or error.hint)

    def stop(self) -> None:
        for source in self._blob_sources:
            source.stop()

    def close(self) -> None:
        for source in self._blob_sources:
            source.close()

    def _offers(self, digest: str) -> Iterator[tuple[BlobSource, Offer]]:
        for source in self._blob_sources:
            try:
                offer = source.offer(digest)
            except (ArtifactError, NetworkError) as error:
                self._failed(error)
                continue
            if offer is not None:
                yield source, offer

    def _failed(self, error: ReproEnvError) -> None:
        with self._lock:
            if str(error) not in map(str, self.failures):
                self.failures.append(error)
