"""Send an image directly to a registry: layers are uploaded while they are made, and only those that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from repro_env.io.registryhttp import PAUSE
from repro_env.oci.manifest import Image
from repro_env.registry.client import Registry
from repro_env.registry.reference import Reference
from repro_env.schema.errors import UsageError
from repro_env.schema.image import CONFIG, MANIFEST, Blob, Packed


class RegistryOutput:
    """An output to `HOST/REPOSITORY:TAG` (`delivery.builder.sinks.Output`)."""

    def __init__(self, reference: Reference, *, pause: float = PAUSE) -> None:
        """Raises `UsageError` for a reference with a digest."""
        if reference.digest:
            what = "the reference has a digest, but the pushed image decides its digest"
            raise UsageError(what, where=str(reference), hint="use a tag")
        self._reference = reference
        self._registry = Registry(reference.host, pause=pause)

    def has(self, layer: Packed) -> bool:
        return self._registry.has(self._reference.repository, layer.blob.digest, layer.blob.size)

    in_workers = False

    def take(self, chunks: Callable[[], Iterator[bytes]]) -> Blob:
        return self._registry.upload(self._reference.repository, chunks)

    def finish(self, image: Image) -> str:
        reference = self._reference
        self._registry.ensure(reference.repository, image.config, CONFIG)
        digest = image.manifest_blob.digest
        if self._registry.head(reference.repository, reference.tag) != digest:
            self._registry.put_manifest(reference.repository, reference.tag, image.manifest, MANIFEST)
        return f"{reference.name}@{digest} (tag {reference.tag})"

    def close(self) -> None:
        """Close connections. Failed uploads were cancelled before."""
        self._registry.close()
