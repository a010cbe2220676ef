"""The bundled trees of a spec: the location of each, and how to get a tree that is missing next to the spec."""

from __future__ import annotations

from pathlib import Path

from repro_env.delivery.builder.blobsource import HINT, BlobSource, BlobSources
from repro_env.delivery.builder.plan import Item
from repro_env.oci import tar
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import ArtifactError, NetworkError, ReproEnvError, StoreError
from repro_env.schema.spec import Spec
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs, compress_chunks
from repro_env.store.store import Store


class Trees:
    """The trees of one spec. Their blobs are next to the spec, in the store, or in a blob source."""

    def __init__(self, spec: Spec, directory: Path, store: Store) -> None:
        """`directory` holds the spec and `blobs/`."""
        self._spec = spec
        self._directory = directory
        self._store = store
        self._blobs = SpecBlobs(directory / "blobs")
        sources: list[BlobSource] = []
        if (directory / files.REMOTE).is_file():
            from repro_env.delivery.builder.remote import RegistryCopy, read

            sources += [RegistryCopy(copy) for copy in read(directory).copies]
        self.blob_sources = BlobSources(sources)
        """The registries in `remote.json`."""

    def named(self) -> list[tuple[str, TreeBlob]]:
        """Return each tree with its name, lowest layer first. The source comes last; it is not a layer."""
        identity, source = self._spec.identity, self._spec.observed.source
        trees: list[tuple[str, TreeBlob | None]] = [
            ("base", identity.base),
            ("unowned libraries", identity.unowned),
            ("interpreter", identity.interpreter.tree),
            ("overlay", identity.overlay),
            ("source", source.tree if source else None),
        ]
        return [(what, tree) for what, tree in trees if tree is not None]

    def item(self, what: str, tree: TreeBlob, *, ask: bool = False) -> Item:
        """Return where a tree is. `ask`: also check its bytes. Raises `ArtifactError` if it is not found."""
        if self._store.layers.path(tree.sha256) is not None:
            return Item(what=what, origin="layer", where="", size=tree.size)
        if (item := self.bundled_item(what, tree, ask=ask)) is not None:
            return item
        offer = self.blob_sources.offer(tree.sha256)
        if offer is not None:
            return Item(what=what, origin=offer.origin, where=offer.where, size=offer.size)
        if what == "source":
            # The source is not part of the image. A run can use the live source; if it cannot, it reports what is missing.
            return Item(what=what, origin="nowhere", where="", size=tree.size)
        raise self._not_found(what, tree)

    def bundled_item(self, what: str, tree: TreeBlob, *, ask: bool) -> Item | None:
        """Return the blob next to the spec, or None. `ask`: also check its bytes."""
        path = self._blobs.path(tree.sha256)
        if path is None:
            return None
        if ask:
            for _ in self._blobs.chunks(tree.sha256, tree.size):
                pass
        return Item(what=what, origin="bundled", where=str(path), size=tree.size)

    def bring(self, what: str, tree: TreeBlob, *, again: bool = False) -> Path:
        """Return the blob's file next to the spec. It is fetched if it is missing, and with `again` in any case.

        Raises `ArtifactError` if it is not found, `NetworkError`, `DiskError`.
        """
        path = self._blobs.path(tree.sha256)
        if path is not None and not again:
            return path
        if not self._from_layer(tree):
            if self.blob_sources.offer(tree.sha256) is None:
                raise self._not_found(what, tree)
            self.blob_sources.fetch(tree.sha256, self._blobs, size=tree.size)
        path = self._blobs.path(tree.sha256)
        if path is None:
            raise self._not_found(what, tree)
        return path

    def _from_layer(self, tree: TreeBlob) -> bool:
        """Write the blob from the unpacked layer in the store. Returns False if the layer is missing or was changed."""
        if self._store.layers.path(tree.sha256) is None:
            return False
        packed = compress_chunks(tar.write(self._store.layers.members(tree.sha256)))
        try:
            self._blobs.restore(tree.sha256, packed, is_gzip=True, size=tree.size, where="the layer in the store")
        except (ArtifactError, StoreError):
            return False
        return True

    def _not_found(self, what: str, tree: TreeBlob) -> ReproEnvError:
        missing = (
            f"the {what} was not found: neither the blob {tree.sha256.removeprefix('sha256:')[:12]}… nor its layer in the store"
        )
        failures = self.blob_sources.failures
        if failures:
            causes = "; ".join(str(error) for error in failures)
            kind = NetworkError if all(isinstance(error, NetworkError) for error in failures) else ArtifactError
            return kind(f"{missing}; {causes}", where=str(self._directory / "blobs"), hint=failures[0].hint or HINT)
        return ArtifactError(missing, where=str(self._directory / "blobs"), hint=HINT)
