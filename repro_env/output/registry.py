"""An image straight into a registry: layers go there as they are made, and only those that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from repro_env.image.manifest import Image
from repro_env.io.web import PAUSE
from repro_env.model.errors import UsageError
from repro_env.model.image import CONFIG, MANIFEST, Blob
from repro_env.registry.client import Registry
from repro_env.registry.reference import Reference


class RegistryOutput:
    """`image.output.Output` to `HOST/REPOSITORY:TAG`."""

    def __init__(
        self, reference: Reference, *, others: Sequence[str] = (), folder: Path | None = None, pause: float = PAUSE
    ) -> None:
        """`others`: repositories of the same registry that may hold layers already. `folder`: for layers that
        come as iterators, which are held until they are sent. Raises `UsageError` for a reference with a digest."""
        if reference.digest:
            what = "names the image by a digest, which follows from what is pushed"
            raise UsageError(what, where=str(reference), hint="name a tag")
        self._reference = reference
        self._others = tuple(one for one in others if one != reference.repository)
        self._registry = Registry(reference.host, pause=pause, folder=folder)

    def has(self, blob: Blob) -> bool:
        repository = self._reference.repository
        if self._registry.has(repository, blob.digest, blob.size):
            return True
        mounted = any(self._registry.mount(repository, blob.digest, other) for other in self._others)
        return mounted and self._registry.has(repository, blob.digest, blob.size)

    def take(self, chunks: Iterable[bytes], known: Blob | None) -> Blob:
        return self._registry.upload(self._reference.repository, chunks, known)

    def finish(self, image: Image) -> str:
        to = self._reference
        self._registry.ensure(to.repository, image.config, CONFIG)
        digest = image.manifest_blob.digest
        if self._registry.head(to.repository, to.tag) != digest:
            self._registry.put_manifest(to.repository, to.tag, image.manifest, MANIFEST)
        return f"{to.name}@{digest} (tag {to.tag})"

    def close(self) -> None:
        """What was begun and not ended was cancelled when it failed."""
        self._registry.close()
