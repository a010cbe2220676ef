"""A catalog in a repository of a registry. Other tags in the repository are left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from repro_env.oci.manifest import Descriptor
from repro_env.registry.client import Registry
from repro_env.registry.reference import Reference
from repro_env.schema.image import MANIFEST, Blob


class RepositoryCatalog:
    """See `place.Catalog`."""

    def __init__(self, reference: Reference) -> None:
        """`reference`: its tag is not used. Does not connect yet."""
        self.name = reference.name
        self._registry = Registry(reference.host)
        self._repository = reference.repository

    def tags(self) -> list[str]:
        return self._registry.tags(self._repository)

    def manifest(self, tag: str, digest: str) -> bytes:  # noqa: ARG002 - the digest is what counts
        return self._registry.manifest(self._repository, digest)[0]

    def has(self, blob: Blob | Descriptor) -> bool:
        return self._registry.has(self._repository, blob.digest, blob.size)

    def read(self, blob: Blob | Descriptor) -> Iterator[bytes]:
        return self._registry.blob(self._repository, blob.digest, blob.size)

    def prepare(self) -> None:
        self._registry.check_push(self._repository)

    def write(self, blob: Blob, chunks: Callable[[], Iterator[bytes]]) -> None:
        self._registry.upload(self._repository, chunks, blob)

    def add(self, tag: str, manifest: bytes) -> None:
        self._registry.put_manifest(self._repository, tag, manifest, MANIFEST)

    def close(self) -> None:
        self._registry.close()
