"""A base that is an image of a registry, fetched again when it is not carried and not in the store: one of `giver.Giver`."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock

from repro_env.build.giver import Offer
from repro_env.build.interface import Origin
from repro_env.image.entry import members
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.spec import BaseHint
from repro_env.model.talk import Silent
from repro_env.store.carried import Carried
from repro_env.store.store import Store

_ORIGIN: Origin = "registry"


class BaseImage:
    """The image that a hint names. What it becomes has to be the very tree that the spec names."""

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
        return Offer(_ORIGIN, self._where, sum(one.size for one in self._hint.layers))

    def give(self, digest: str, carried: Carried, *, size: int | None) -> int:  # noqa: ARG002 the spec says it, and it is compared
        from repro_env.base import pulled

        with self._lock:
            before = self._store.layers.path(digest)
            try:
                made = pulled.again(self._hint, self._store, Silent(), self._asked())
            except (ArtifactError, NetworkError) as error:
                hint = f"{error.hint}; or copy the blobs/ of a capture with --keep-base beside the spec"
                raise type(error)(f"the base cannot be had: {error}", where=self._where, hint=hint) from None
            if before is None:
                self.fetched += sum(one.size for one in self._hint.layers)
            if made.blob != self._base:
                raise ArtifactError(
                    f"becomes the tree {made.blob.sha256}, and the spec was made with {self._base.sha256}",
                    where=self._where,
                    hint="the spec was edited, or made by another version; copy the blobs/ of a capture with --keep-base",
                )
            carried.add_tree(members(made.tree.entries, made.tree.contents), facts=self._store.facts)
        return made.blob.size

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        pass

    def _asked(self) -> Iterator[bool]:
        """Whether to stop, asked at each piece that comes."""
        while True:
            yield self._stopped
