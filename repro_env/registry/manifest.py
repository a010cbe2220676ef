"""Manifests and indexes of images as registries give them: OCI and Docker schema 2, read strictly.

What no reader needs may hold anything; what is read has its type, its pattern and its bound.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from repro_env.model import codec
from repro_env.model.errors import ArtifactError, PlatformError, SpecError
from repro_env.model.image import INDEX, MANIFEST, Blob
from repro_env.model.text import Digest, Line

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_DATA = b"{}"
"""What stands for a config where there is none (OCI image spec)."""
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)
INDEXES = (INDEX, DOCKER_LIST)
ACCEPT = f"{MANIFEST}, {INDEX}, {DOCKER_MANIFEST}, {DOCKER_LIST}"
LARGEST = 4 << 20
"""Bytes of a manifest or an index: what the distribution specification lets registries refuse beyond."""
_MEDIA = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*\Z", max_length=255)]
_WORD = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]*\Z", max_length=100)]
_Annotations = Annotated[dict[Line, Annotated[str, Meta(max_length=20_000)]], Meta(max_length=1000)]


class Platform(msgspec.Struct, frozen=True, rename={"os_version": "os.version"}):
    """For which machines an image is."""

    architecture: _WORD
    os: _WORD
    variant: _WORD = ""
    os_version: _WORD = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a manifest says of a blob, or an index of a manifest."""

    media_type: _MEDIA
    digest: Digest
    size: Annotated[int, Meta(ge=0, le=1 << 50)]
    artifact_type: Line | None = None
    annotations: _Annotations | None = None
    platform: Platform | None = None

    @property
    def blob(self) -> Blob:
        return Blob(media_type=self.media_type, digest=self.digest, size=self.size)


class Manifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One image, or an artifact that hangs on one."""

    schema_version: Literal[2]
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], Meta(max_length=1000)]
    """Lowest first."""
    media_type: _MEDIA | None = None
    artifact_type: Line | None = None
    subject: Descriptor | None = None
    annotations: _Annotations | None = None


class Index(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Several manifests: an image for several platforms, or what hangs on an image."""

    schema_version: Literal[2]
    manifests: Annotated[tuple[Descriptor, ...], Meta(max_length=10_000)]
    media_type: _MEDIA | None = None
    annotations: _Annotations | None = None


class _Shape(msgspec.Struct, frozen=True, rename="camel"):
    """Which keys there are: a document that is both is read by one program so, by another otherwise."""

    media_type: str | None = None
    layers: msgspec.Raw = msgspec.Raw()
    config: msgspec.Raw = msgspec.Raw()
    manifests: msgspec.Raw = msgspec.Raw()
    fs_layers: msgspec.Raw = msgspec.Raw()


def parse(data: bytes, media_type: str, *, where: str) -> Manifest | Index:
    """Raises `ArtifactError` for anything else than what `media_type`, and it itself, say that it is."""
    hint = "ask for an image in OCI or Docker schema 2 form"
    if media_type not in MANIFESTS + INDEXES:
        raise ArtifactError(f"is no image: its media type is {media_type[:100]!r}", where=where, hint=hint)
    try:
        shape = codec.decode(data, _Shape, where=where)
        if shape.media_type is not None and shape.media_type != media_type:
            said = f"says that it is {shape.media_type[:100]!r}, and the registry says {media_type!r}"
            raise ArtifactError(said, where=where, hint=hint)
        is_index = media_type in INDEXES
        foreign = (shape.layers, shape.config) if is_index else (shape.manifests,)
        if any(bytes(one) for one in (*foreign, shape.fs_layers)):
            raise ArtifactError("is a manifest and an index at once", where=where, hint=hint)
        return codec.decode(data, Index, where=where) if is_index else codec.decode(data, Manifest, where=where)
    except SpecError as error:
        raise ArtifactError(
            error.what, where=where, hint="the image is damaged, or not made as the OCI image spec has it"
        ) from None


def choose(index: Index, *, architecture: str, os: str = "linux", where: str) -> Descriptor:
    """The first image of the index for a platform, plain variants first. Raises `PlatformError` when there is none."""
    found = [
        one
        for one in index.manifests
        if one.platform is not None and (one.platform.os, one.platform.architecture) == (os, architecture)
    ]
    if found:
        return min(found, key=lambda one: bool(one.platform and one.platform.variant))
    there = sorted({str(one.platform) for one in index.manifests if one.platform is not None and one.platform.os != "unknown"})
    named = ", ".join(there[:10]) or "none that is named"
    raise PlatformError(f"has no image for {os}/{architecture}, but for: {named}", where=where, hint="take another image")


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def described(data: bytes, media_type: str) -> Blob:
    return Blob(media_type=media_type, digest=digest_of(data), size=len(data))


def is_digest(text: str) -> bool:
    """Whether a reference is a digest; else it is a tag."""
    return text.startswith("sha256:") and len(text) == 71 and all(sign in "0123456789abcdef" for sign in text[7:])
