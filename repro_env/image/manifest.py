"""The image as it is sent: config, manifest and the digests that follow from them (OCI image spec 1.1)."""

from __future__ import annotations

import hashlib

import msgspec

from repro_env.model import codec
from repro_env.model.image import CONFIG, MANIFEST, Blob


class Image(msgspec.Struct, frozen=True):
    """Everything of an image but its layers' bytes."""

    config: bytes
    """Its sha256 is the image ID."""
    layers: tuple[Blob, ...]
    """Lowest first."""

    @property
    def config_blob(self) -> Blob:
        return blob(self.config, CONFIG)

    @property
    def manifest(self) -> bytes:
        """Canonical JSON, so its digest follows from config and layers alone."""
        return codec.canonical(
            {
                "config": _descriptor(self.config_blob),
                "layers": [_descriptor(one) for one in self.layers],
                "mediaType": MANIFEST,
                "schemaVersion": 2,
            }
        )

    @property
    def manifest_blob(self) -> Blob:
        """Its digest is what registries name the image by."""
        return blob(self.manifest, MANIFEST)


def blob(data: bytes, media_type: str) -> Blob:
    return Blob(media_type=media_type, digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))


def _descriptor(one: Blob) -> dict[str, object]:
    return {"digest": one.digest, "mediaType": one.media_type, "size": one.size}
