"""The config and manifest of an image, and their digests (OCI image spec 1.1)."""

from __future__ import annotations

import hashlib

import msgspec

from repro_env.schema import codec
from repro_env.schema.image import CONFIG, MANIFEST, Blob


class Image(msgspec.Struct, frozen=True):
    """An image without the bytes of its layers."""

    config: bytes
    """Its sha256 is the image ID."""
    layers: tuple[Blob, ...]
    """Lowest first."""

    @property
    def config_blob(self) -> Blob:
        return blob(self.config, CONFIG)

    @property
    def manifest(self) -> bytes:
        """The manifest as canonical JSON: its digest depends only on the config and the layers."""
        return codec.canonical(
            {
                "config": _descriptor(self.config_blob),
                "layers": [_descriptor(layer) for layer in self.layers],
                "mediaType": MANIFEST,
                "schemaVersion": 2,
            }
        )

    @property
    def manifest_blob(self) -> Blob:
        """The manifest as a blob. Registries identify the image by its digest."""
        return blob(self.manifest, MANIFEST)


def blob(data: bytes, media_type: str) -> Blob:
    """Return the descriptor of some bytes."""
    return Blob(media_type=media_type, digest="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data))


def _descriptor(content: Blob) -> dict[str, object]:
    return {"digest": content.digest, "mediaType": content.media_type, "size": content.size}
