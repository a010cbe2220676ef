"""Images that were sent whole: what each layer became. With it, to see that nothing changed takes no look at any wheel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.image import config
from repro_env.image.manifest import Image
from repro_env.model import codec
from repro_env.model.codec import Frozen
from repro_env.model.image import Packed
from repro_env.model.spec import Spec
from repro_env.store.carried import SENT, Carried, key_of
from repro_env.store.store import Store

KIND = "image"
"""Kind of the facts of images, by image ID, put only when each layer was proven to follow from the identity."""


class Proven(Frozen, frozen=True, kw_only=True):
    layers: tuple[Packed, ...]
    """Lowest first."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """An image in an output."""

    image: Image
    layers: tuple[Packed, ...]
    """Lowest first."""
    where: str
    """A line for people."""
    made: tuple[str, ...]
    """Diff IDs of the layers that were sent; the others were there."""
    fetched: int
    sent: int
    """Bytes."""

    @property
    def image_id(self) -> str:
        return self.image.config_blob.digest


def remember(image_id: str, layers: Sequence[Packed], store: Store) -> None:
    store.facts.put(KIND, image_id, codec.canonical(Proven(layers=tuple(layers))))


def recall(spec: Spec, folder: Path, store: Store, *, user: str = "") -> tuple[Image, tuple[Packed, ...]] | None:
    """The image of a spec as it was sent before; None when it was not, or a blob beside the spec may be another one now.

    The image ID holds the identity's digest and every diff ID, so what was proven of it holds for this spec, and for the
    same layers started as another `user`.
    """
    expected = spec.expected
    diff_ids = [one.diff_id for one in expected.layers]
    proven = config.image_id(spec.identity, expected.layers) == expected.image_id
    found = store.facts.recall(KIND, expected.image_id, Proven) if proven else None
    if found is None or [one.diff_id for one in found.layers] != diff_ids:
        return None
    carried = Carried(folder / "blobs")
    for one in found.layers:
        path = carried.path(one.diff_id)
        if path is not None and store.facts.get(SENT, key_of(path)) != one.blob.digest.encode():
            return None
    data = config.config(spec.identity, diff_ids, user=user)
    return Image(data, tuple(one.blob for one in found.layers)), found.layers
