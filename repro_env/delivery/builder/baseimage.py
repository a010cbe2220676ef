"""The base of a spec as an image in a registry: a `blobsource.BlobSource` for a base that is neither bundled nor in the store."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from repro_env.delivery.builder.blobsource import Offer
from repro_env.delivery.builder.plan import Origin
from repro_env.oci.entry import members
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.progress import Silent
from repro_env.schema.spec import BaseHint
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

_ORIGIN: Origin = "registry"


class BaseImage:
    """The base image that a hint of the spec names. It must give exactly the tree that the spec names."""

    def __init__(self, hint: BaseHint, base: TreeBlob, store: Store) -> None:
        self._hint = hint
        self._base = base
        self._store = store
        self._lock = Lock()
        self._stopped = False
        self.fetched = 0
        self.layers = False

    @property
    def _where(self) -> str:
        return f"{self._hint.reference}@{self._hint.digest}"

    def offer(self, digest: str) -> Offer | None:
        if digest != self._base.sha256:
            return None
        return Offer(_ORIGIN, self._where, sum(layer.size for layer in self._hint.layers))

    def fetch(self, digest: str, blobs: SpecBlobs, *, size: int | None) -> int:  # noqa: ARG002 the tree is compared with the spec as a whole
        from repro_env.environment.system import baseimage

        with self._lock:
            known = self._store.layers.path(digest)
            try:
                image = baseimage.fetch(self._hint, self._store, Silent(), self._cancelled())
            except (ArtifactError, NetworkError) as error:
                hint = f"{error.hint}; or capture with --keep-base and copy its blobs/ directory next to the spec"
                raise type(error)(f"the base image cannot be fetched: {error}", where=self._where, hint=hint) from None
            if known is None:
                self.fetched += sum(layer.size for layer in self._hint.layers)
            if image.blob != self._base:
                raise ArtifactError(
                    f"the base image has the tree {image.blob.sha256}, but the spec expects {self._base.sha256}",
                    where=self._where,
                    hint="the spec was edited, or made by another version of repro-env; capture again with --keep-base",
                )
            blobs.add_tree(members(image.tree.entries, image.tree.contents), facts=self._store.facts)
        return image.blob.size

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        pass

    def _cancelled(self) -> Iterator[bool]:
        """Yield whether to stop; read before each chunk of the download."""
        while True:
            yield self._stopped
