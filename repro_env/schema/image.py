"""An image as a value: its layers by diff ID, its config, and its image ID (OCI image spec)."""

from __future__ import annotations

from typing import Literal

from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Variable
from repro_env.schema.text import Digest, Line

LayerKind = Literal["base", "unpackaged", "interpreter", "conda", "distributions", "overlay", "marker"]
"""From the lowest layer to the highest."""


class Layer(Frozen, frozen=True, kw_only=True):
    """A layer."""

    kind: LayerKind
    diff_id: Digest
    holds: tuple[Line, ...]
    """`name==version` of each distribution or conda package in the layer."""


LABEL = "io.repro-env.spec"
"""The label of an image with the digest of its spec."""
PLAIN = "application/vnd.oci.image.layer.v1.tar"
GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Blob(Frozen, frozen=True, kw_only=True):
    """A blob in a registry or an image layout (OCI image spec: descriptor)."""

    media_type: Line
    digest: Digest
    """Of the bytes of the blob, which may be compressed."""
    size: Size


class Packed(Frozen, frozen=True, kw_only=True):
    """A compressed layer: the digest of its uncompressed tar, and the blob."""

    diff_id: Digest
    blob: Blob


class Config(Frozen, frozen=True, kw_only=True):
    """The part of the image config that depends on the environment."""

    env: tuple[Variable, ...]
    """Sorted by name. `PATH` starts with the environment's scripts directory."""


class Settings(Frozen, frozen=True, kw_only=True, rename="pascal"):
    """The settings of an image for its containers, with the names of the OCI image config."""

    cmd: list[str]
    env: list[str]
    """`NAME=value`, sorted by name."""
    labels: dict[str, str]
    working_dir: str


class Expected(Frozen, frozen=True, kw_only=True):
    """The image that rebuild must reproduce."""

    layers: tuple[Layer, ...]
    """From the lowest to the highest."""
    image_id: Digest
