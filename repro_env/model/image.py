"""The image as a value: layers by diff ID, a config, and the ID computed from it (OCI image spec)."""

from __future__ import annotations

from typing import Literal

from repro_env.model.artifact import Size
from repro_env.model.codec import Frozen
from repro_env.model.environment import Variable
from repro_env.model.text import Digest, Line

LayerKind = Literal["base", "unowned", "interpreter", "conda", "distributions", "overlay", "marker"]
"""Lowest first. `unowned`: libraries and programs of the machine that belong to no package of its."""


class Layer(Frozen, frozen=True, kw_only=True):
    """One layer: what its tar hashes to, and what it holds, in words."""

    kind: LayerKind
    diff_id: Digest
    holds: tuple[Line, ...]
    """`name==version` of each distribution or conda package in it; empty for the other kinds."""


GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Blob(Frozen, frozen=True, kw_only=True):
    """Bytes as a registry or an image layout holds them (OCI image spec: descriptor)."""

    media_type: Line
    digest: Digest
    """Of these very bytes, compressed where they are."""
    size: Size


class Packed(Frozen, frozen=True, kw_only=True):
    """A layer as it is sent: what its blob unpacks to, and the blob."""

    diff_id: Digest
    blob: Blob


class Config(Frozen, frozen=True, kw_only=True):
    """The part of the image config that is ours to choose; the rest is fixed by rule."""

    env: tuple[Variable, ...]
    """Sorted by name. `PATH` starts with the environment's own scripts folder. The working folder is always `/`."""


class Settings(Frozen, frozen=True, kw_only=True, rename="pascal"):
    """What an image sets for every container that is started from it, under the names of the OCI image config."""

    cmd: list[str]
    env: list[str]
    """`NAME=value`, sorted by name."""
    labels: dict[str, str]
    working_dir: str


class Expected(Frozen, frozen=True, kw_only=True):
    """What capture computed from the installed files, and rebuild has to reach from the wheels."""

    layers: tuple[Layer, ...]
    """Lowest first."""
    image_id: Digest
    packed: tuple[Packed, ...] = ()
    """Of those layers whose compressed form was made before the capture; in the order of `layers`. No part of any identity."""
