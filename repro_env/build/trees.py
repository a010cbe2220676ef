"""The carried trees of a spec: where each is, and how one that is missing beside the spec is had again."""

from __future__ import annotations

from pathlib import Path

from repro_env.build.giver import HINT, Giver, Givers
from repro_env.build.interface import Item
from repro_env.image import tar
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError, NetworkError, ReproEnvError, StoreError
from repro_env.model.spec import Spec
from repro_env.store import parts
from repro_env.store.carried import Carried, compressed
from repro_env.store.store import Store


def givers(spec: Spec, folder: Path, store: Store) -> Givers:
    """Everybody who may have what is missing in `folder`: the registries that its `remote.json` names, and the base's own."""
    found: list[Giver] = []
    if (folder / parts.REMOTE).is_file():
        from repro_env.build.remote import Copies, read

        found += [Copies(one) for one in read(folder).copies]
    if spec.hints.base is not None:
        from repro_env.build.based import BaseImage

        found.append(BaseImage(spec.hints.base, spec.identity.base, store))
    return Givers(found)


class Trees:
    """The trees of one spec, whose blobs are beside it, in the store, or with a giver."""

    def __init__(self, spec: Spec, folder: Path, store: Store, others: Givers | None = None) -> None:
        """`folder` holds the spec, and `blobs/`."""
        self._spec = spec
        self._folder = folder
        self._store = store
        self._carried = Carried(folder / "blobs")
        self.givers = others if others is not None else givers(spec, folder, store)

    def named(self) -> list[tuple[str, TreeBlob]]:
        """Each with the word that people know it by, lowest layer first; the source last, which is no layer."""
        identity, source = self._spec.identity, self._spec.observed.source
        found: list[tuple[str, TreeBlob | None]] = [
            ("base", identity.base),
            ("unowned libraries", identity.unowned),
            ("interpreter", identity.interpreter.tree),
            ("overlay", identity.overlay),
            ("source", source.tree if source else None),
        ]
        return [(what, tree) for what, tree in found if tree is not None]

    def item(self, what: str, tree: TreeBlob, *, ask: bool = False) -> tuple[Item, bool]:
        """Where a tree is, and whether it has to be unpacked. `ask`: check its bytes. Raises `ArtifactError` when it is nowhere."""
        if self._store.layers.path(tree.sha256) is not None:
            return Item(what=what, origin="layer", where="", size=tree.size), False
        path = self._carried.path(tree.sha256)
        if path is not None:
            if ask:
                for _ in self._carried.chunks(tree.sha256, tree.size):
                    pass
            return Item(what=what, origin="bundled", where=str(path), size=tree.size), True
        offer = self.givers.offer(tree.sha256)
        if offer is not None:
            return Item(what=what, origin=offer.origin, where=offer.where, size=offer.size), True
        if what == "source":
            # No part of the image: a run can take the live source, and says what is missing when it cannot.
            return Item(what=what, origin="nowhere", where="", size=tree.size), False
        raise self._nowhere(what, tree)

    def bring(self, what: str, tree: TreeBlob, *, again: bool = False) -> Path:
        """The blob's file beside the spec, fetched when it is missing, or with `again` in any case.

        Raises `ArtifactError` when it is nowhere to be had, `NetworkError`, `DiskError`.
        """
        path = self._carried.path(tree.sha256)
        if path is not None and not again:
            return path
        if not self._from_layer(tree):
            if self.givers.offer(tree.sha256) is None:
                raise self._nowhere(what, tree)
            self.givers.give(tree.sha256, self._carried, size=tree.size)
        path = self._carried.path(tree.sha256)
        if path is None:
            raise self._nowhere(what, tree)
        return path

    def _from_layer(self, tree: TreeBlob) -> bool:
        """Make the blob anew from the unpacked layer in the store; False where that is not there, or not what it was."""
        if self._store.layers.path(tree.sha256) is None:
            return False
        packed = compressed(tar.write(self._store.layers.members(tree.sha256)))
        try:
            self._carried.restore(tree.sha256, packed, compressed=True, size=tree.size, where="the layer in the store")
        except (ArtifactError, StoreError):
            return False
        return True

    def _nowhere(self, what: str, tree: TreeBlob) -> ReproEnvError:
        missing = f"the {what} is not there: no blob {tree.sha256.removeprefix('sha256:')[:12]}…, and not in the store"
        failures = self.givers.failures
        if failures:
            tried = "; ".join(str(error) for error in failures)
            kind = NetworkError if all(isinstance(error, NetworkError) for error in failures) else ArtifactError
            return kind(f"{missing}; {tried}", where=str(self._folder / "blobs"), hint=failures[0].hint or HINT)
        return ArtifactError(missing, where=str(self._folder / "blobs"), hint=HINT)
