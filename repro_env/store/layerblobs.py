"""The known gzip blobs of layers: diff ID -> blob. A fact is stored only after the blob was proven.

Proven means: the blob was decompressed, and the result had the diff ID. How a layer is compressed is part of the key,
because another method gives other bytes.
"""

from __future__ import annotations

from repro_env.oci.gzipencoder import ENCODER
from repro_env.schema import codec
from repro_env.schema.image import GZIP, Blob, LayerKind, Packed
from repro_env.store.facts import FactCache
from repro_env.store.specs.blobs import BLOB_DIGEST, SpecBlobs, file_key

_PACKED = "packed"
"""Kind of these facts, by `<compression> <diff ID>`."""
_COMPRESSIONS = {"conda": "zlib", "distributions": f"stitch-{ENCODER}", "marker": f"stitch-{ENCODER}"}
"""By kind of layer; a bundled tree is sent as its capture wrote it."""
_BUNDLED = "bundled"


def recall(facts: FactCache, kind: LayerKind, diff_id: str, blobs: SpecBlobs) -> Packed | None:
    """Return the proven blob of a layer, or None. Of a bundled tree, the blob is that of the file in `blobs`, if there is one."""
    compression = _COMPRESSIONS.get(kind, _BUNDLED)
    path = blobs.path(diff_id) if compression == _BUNDLED else None
    if path is None:
        return facts.recall(_PACKED, f"{compression} {diff_id}", Packed)
    digest = facts.get(BLOB_DIGEST, file_key(path)) if path.suffix == ".gz" else None
    if digest is None:
        return None
    return Packed(diff_id=diff_id, blob=Blob(media_type=GZIP, digest=digest.decode(), size=path.stat().st_size))


def remember(facts: FactCache, kind: LayerKind, packed: Packed, blobs: SpecBlobs) -> None:
    """Store the proven blob of a layer."""
    compression = _COMPRESSIONS.get(kind, _BUNDLED)
    facts.put(_PACKED, f"{compression} {packed.diff_id}", codec.canonical(packed))
    path = blobs.path(packed.diff_id) if compression == _BUNDLED else None
    if path is not None and path.suffix == ".gz":
        facts.put(BLOB_DIGEST, file_key(path), packed.blob.digest.encode())
