"""The carried trees of a spec: where each is, and how one that is missing beside the spec is had again.

A `Giver` knows another place that has such a tree: a registry that the spec was pushed to, say. What it gives is
checked to its last byte and put among the spec's blobs, so that whoever reads them next finds what the capture left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec

from repro_env.build.interface import Item, Origin
from repro_env.image import tar
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError, NetworkError, ReproEnvError, StoreError
from repro_env.model.spec import Spec
from repro_env.store import parts
from repro_env.store.carried import Carried, compressed
from repro_env.store.store import Store


class Offer(msgspec.Struct, frozen=True):
    """Something that a giver has."""

    origin: Origin
    where: str
    """For people, without credentials."""
    size: int
    """Bytes to fetch."""


class Giver(Protocol):
    """A place beyond this folder that has trees, layers or wheels of the spec. Safe from several threads."""

    fetched: int
    """Bytes that came over the network so far."""
    layers: bool
    """Whether it has the layers of wheels too."""

    def offer(self, digest: str) -> Offer | None:
        """Whether it has what unpacks to `digest` (or, of a wheel, is `digest`). Raises `NetworkError`, `ArtifactError`."""
        ...

    def give(self, digest: str, carried: Carried, *, size: int | None) -> int:
        """Put it among the blobs, checked; returns its bytes, unpacked. `size`: what they have to be, None when not known.

        Raises `NetworkError`, `ArtifactError` for other bytes, `DiskError`.
        """
        ...

    def stop(self) -> None:
        """Let what is under way end soon."""
        ...

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        ...


class Givers:
    """All givers of a spec, nearest first."""

    def __init__(self, givers: Sequence[Giver]) -> None:
        self._givers = givers
        self._lock = Lock()
        self.failures: list[ReproEnvError] = []
        """Why some of them could not give what they were asked for."""

    @property
    def layers(self) -> bool:
        """Whether there is anybody to ask for the layers of wheels."""
        return any(one.layers for one in self._givers)

    @property
    def fetched(self) -> int:
        return sum(one.fetched for one in self._givers)

    def offer(self, digest: str) -> Offer | None:
        """The first offer of what unpacks to `digest`."""
        return next((offer for _, offer in self._offers(digest)), None)

    def give(self, digest: str, carried: Carried, *, size: int | None) -> int:
        """As `Giver.give`, by the first of those that offer it and can. Raises what the last of them raised."""
        problem: ReproEnvError = ArtifactError("is nowhere to be had", where=digest, hint=_HINT)
        for giver, _ in self._offers(digest):
            try:
                return giver.give(digest, carried, size=size)
            except (ArtifactError, NetworkError) as error:  # noqa: PERF203 the next one may have it
                self._failed(error)
                problem = error
        raise problem

    def explained(self, failed: ReproEnvError) -> ReproEnvError:
        """A failure to find something elsewhere, with why it could not be had from the givers either."""
        if not self.failures:
            return failed
        tried = "; ".join(str(error) for error in self.failures)
        return type(failed)(f"{failed.what}; {tried}", where=failed.where, hint=self.failures[0].hint or failed.hint)

    def stop(self) -> None:
        for one in self._givers:
            one.stop()

    def close(self) -> None:
        for one in self._givers:
            one.close()

    def _offers(self, digest: str) -> Iterator[tuple[Giver, Offer]]:
        for giver in self._givers:
            try:
                offer = giver.offer(digest)
            except (ArtifactError, NetworkError) as error:
                self._failed(error)
                continue
            if offer is not None:
                yield giver, offer

    def _failed(self, error: ReproEnvError) -> None:
        with self._lock:
            if str(error) not in map(str, self.failures):
                self.failures.append(error)


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
            return Item(what=what, origin="carried", where=str(path), size=tree.size), True
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
            return kind(f"{missing}; {tried}", where=str(self._folder / "blobs"), hint=failures[0].hint or _HINT)
        return ArtifactError(missing, where=str(self._folder / "blobs"), hint=_HINT)


_HINT = "copy the blobs/ folder of the capture beside the spec, or capture again"
