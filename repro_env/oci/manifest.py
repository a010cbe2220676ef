"""The manifest of an image that repro-env made, and manifests and indexes of any tool: OCI and Docker schema 2.

Fields that repro-env does not use may contain anything; all others are checked for type, pattern and size.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, PlatformError, SpecError
from repro_env.schema.image import CONFIG, INDEX, MANIFEST, Blob
from repro_env.schema.text import Digest, Line

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_DATA = b"{}"
"""The config of a manifest without one (OCI image spec)."""
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
INDEXES = (INDEX, DOCKER_LIST)
ACCEPT = f"{MANIFEST}, {INDEX}, {DOCKER_MANIFEST}, {DOCKER_LIST}"
MAX_SIZE = 4 << 20
"""Bytes of a manifest or index; the distribution specification allows registries to reject larger ones."""
_MEDIA = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*\Z", max_length=255)]
_WORD = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]*\Z", max_length=100)]
_Annotations = Annotated[dict[Line, Annotated[str, Meta(max_length=20_000)]], Meta(max_length=1000)]


class Platform(msgspec.Struct, frozen=True):
    """The platform that an image is for."""

    architecture: _WORD
    os: _WORD

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The description of a blob in a manifest, or of a manifest in an index."""

    media_type: _MEDIA
    digest: Digest
    size: Annotated[int, Meta(ge=0, le=1 << 50)]
    artifact_type: Line | None = None
    annotations: _Annotations | None = None
    platform: Platform | None = None


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An image, or an artifact that refers to one."""

    schema_version: Literal[2]
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], Meta(max_length=1000)]
    """Lowest first."""
    media_type: _MEDIA | None = None
    artifact_type: Line | None = None
    subject: Descriptor | None = None


class Index(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A list of manifests: of an image for several platforms, or of the referrers of an image."""

    schema_version: Literal[2]
    manifests: Annotated[tuple[Descriptor, ...], Meta(max_length=10_000)]
    media_type: _MEDIA | None = None


class Image(msgspec.Struct, frozen=True):
    """An image without the bytes of its layers."""

    config: bytes
    """Its sha256 is the image ID."""
    layers: tuple[Blob, ...]
    """Lowest first."""

    @property
    def config_blob(self) -> Blob:
        return blob_of(self.config, CONFIG)

    @property
    def manifest(self) -> bytes:
        """The manifest as canonical JSON: its digest depends only on the config and the layers."""
        return codec.canonical(
            {
                "config": as_descriptor(self.config_blob),
                "layers": [as_descriptor(layer) for layer in self.layers],
                "mediaType": MANIFEST,
                "schemaVersion": 2,
            }
        )

    @property
    def manifest_blob(self) -> Blob:
        """The manifest as a blob. Registries identify the image by its digest."""
        return blob_of(self.manifest, MANIFEST)


class _Shape(msgspec.Struct, frozen=True, rename="camel"):
    """The keys of a document. One that is both a manifest and an index would mean different things to different programs."""

    media_type: str | None = None
    layers: msgspec.Raw = msgspec.Raw()
    config: msgspec.Raw = msgspec.Raw()
    manifests: msgspec.Raw = msgspec.Raw()
    fs_layers: msgspec.Raw = msgspec.Raw()


def parse(data: bytes, media_type: str, *, where: str) -> Manifest | Index:
    """Parse a manifest or index. Raises `ArtifactError` if it is not what `media_type` and its own media type say."""
    hint = "use an image in OCI or Docker schema 2 format"
    if media_type not in MANIFESTS + INDEXES:
        raise ArtifactError(f"this is not an image: its media type is {media_type[:100]!r}", where=where, hint=hint)
    try:
        shape = codec.decode(data, _Shape, where=where)
        if shape.media_type is not None and shape.media_type != media_type:
            what = f"this manifest has the media type {shape.media_type[:100]!r}, but the registry says {media_type!r}"
            raise ArtifactError(what, where=where, hint=hint)
        is_index = media_type in INDEXES
        wrong_fields = (shape.layers, shape.config) if is_index else (shape.manifests,)
        if any(bytes(field) for field in (*wrong_fields, shape.fs_layers)):
            raise ArtifactError("this document is both a manifest and an index", where=where, hint=hint)
        return codec.decode(data, Index, where=where) if is_index else codec.decode(data, Manifest, where=where)
    except SpecError as error:
        raise ArtifactError(
            f"this manifest is invalid: {error.what}",
            where=where,
            hint="the image is damaged or does not follow the OCI image spec",
        ) from None


def choose(index: Index, *, architecture: str, where: str) -> Descriptor:
    """The first image of the index for a Linux platform. Raises `PlatformError` if there is none."""
    by_platform = {str(row.platform): row for row in reversed(index.manifests) if row.platform is not None}
    chosen = by_platform.get(f"linux/{architecture}")
    if chosen is None:
        listed = ", ".join(sorted(by_platform.keys() - {"unknown/unknown"})[:10]) or "unnamed platforms"
        what = f"there is no image for linux/{architecture}, only for: {listed}"
        raise PlatformError(what, where=where, hint="choose another image")
    return chosen


def blob_of(data: bytes, media_type: str) -> Blob:
    return Blob(media_type=media_type, digest=codec.digest_of(data), size=len(data))


def is_digest(text: str) -> bool:
    """Whether the reference of a manifest is a digest and not a tag."""
    return text.startswith("sha256:") and len(text) == 71 and all(character in "0123456789abcdef" for character in text[7:])


def as_descriptor(blob: Blob | Descriptor) -> dict[str, object]:
    """Return the descriptor of a blob as a manifest has it."""
    return {"digest": blob.digest, "mediaType": blob.media_type, "size": blob.size}
