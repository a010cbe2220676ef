"""The known gzip blobs of layers: diff ID -> blob. A fact is stored only after the blob was proven.

Proven means: the blob was decompressed, and the result had the diff ID. The compression method is part of the key,
because another method gives other bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from repro_env.oci.gzipencoder import ENCODER
from repro_env.schema import codec
from repro_env.schema.image import GZIP, Blob, Layer, LayerKind, Packed
from repro_env.store.facts import FactCache
from repro_env.store.specs.blobs import BLOB_DIGEST, SpecBlobs, file_key

PACKED = "packed"
"""Kind of these facts, by `<compression> <diff ID>`."""
STITCHED = f"stitch-{ENCODER}"
"""Compression by the frozen encoder: wheels and the marker."""
ZLIB = "zlib"
BUNDLED = "carried"
"""Compression of a bundled blob, as its capture wrote it."""


def compression_of(kind: LayerKind) -> str:
    """Return the compression of a layer of this kind."""
    if kind == "conda":
        return ZLIB
    return STITCHED if kind in ("distributions", "marker") else BUNDLED


def recall(facts: FactCache, compression: str, diff_id: str) -> Packed | None:
    """Return the proven blob of a layer, or None."""
    return facts.recall(PACKED, f"{compression} {diff_id}", Packed)


def remember(facts: FactCache, compression: str, packed: Packed) -> None:
    """Store the proven blob of a layer."""
    facts.put(PACKED, f"{compression} {packed.diff_id}", codec.canonical(packed))


def bundled_blob(facts: FactCache, path: Path) -> Blob | None:
    """Return the descriptor of a bundled gzip file, if the file was proven and is unchanged; else None."""
    digest = facts.get(BLOB_DIGEST, file_key(path)) if path.suffix == ".gz" else None
    return Blob(media_type=GZIP, digest=digest.decode(), size=path.stat().st_size) if digest is not None else None


def recall_all(layers: Iterable[Layer], directory: Path, facts: FactCache) -> tuple[Packed, ...]:
    """Return the known blobs of an image's layers, in the order of the layers. `directory` holds the bundled blobs."""
    blobs = SpecBlobs(directory)
    packed = []
    for layer in layers:
        path = blobs.path(layer.diff_id)
        if path is not None:
            blob = bundled_blob(facts, path)
            recalled = Packed(diff_id=layer.diff_id, blob=blob) if blob is not None else None
        else:
            recalled = recall(facts, compression_of(layer.kind), layer.diff_id)
        if recalled is not None:
            packed.append(recalled)
    return tuple(packed)
