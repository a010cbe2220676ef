"""What is known of layers as they are sent: diff ID -> gzip blob. Facts, each put only after the blob was proven.

Proven: it was inflated, and what came out hashed to the diff ID. How a layer was compressed is part of the key, since
another way gives other bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from repro_env.image.stitch import ENCODER
from repro_env.model import codec
from repro_env.model.image import GZIP, Blob, Layer, LayerKind, Packed
from repro_env.store.carried import SENT, Carried, key_of
from repro_env.store.facts import FactCache

PACKED = "packed"
"""Kind of these facts, by `<how> <diff ID>`."""
STITCHED = f"stitch-{ENCODER}"
"""By our own frozen encoder: wheels, and the marker."""
ZLIB = "zlib"
CARRIED = "carried"
"""As the blob beside some spec was compressed when it was captured."""


def how(kind: LayerKind) -> str:
    """How a layer of this kind is compressed."""
    if kind == "conda":
        return ZLIB
    return STITCHED if kind in ("distributions", "marker") else CARRIED


def known(facts: FactCache, how: str, diff_id: str) -> Packed | None:
    """What a layer was proven to become."""
    return facts.recall(PACKED, f"{how} {diff_id}", Packed)


def remember(facts: FactCache, how: str, found: Packed) -> None:
    facts.put(PACKED, f"{how} {found.diff_id}", codec.canonical(found))


def carried(facts: FactCache, path: Path) -> Blob | None:
    """The blob that a carried file is, byte for byte, when it was proven since it was written."""
    digest = facts.get(SENT, key_of(path)) if path.suffix == ".gz" else None
    return Blob(media_type=GZIP, digest=digest.decode(), size=path.stat().st_size) if digest is not None else None


def expected(layers: Iterable[Layer], folder: Path, facts: FactCache) -> tuple[Packed, ...]:
    """Of an image's layers, those whose blobs are known; `folder` has the carried ones. In the order of the layers."""
    blobs = Carried(folder)
    found = []
    for one in layers:
        path = blobs.path(one.diff_id)
        if path is not None:
            blob = carried(facts, path)
            one_found = Packed(diff_id=one.diff_id, blob=blob) if blob is not None else None
        else:
            one_found = known(facts, how(one.kind), one.diff_id)
        if one_found is not None:
            found.append(one_found)
    return tuple(found)
