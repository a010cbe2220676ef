"""The artifacts that an image is built from, each with its sha256."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from repro_env.schema.codec import Frozen
from repro_env.schema.text import CondaFile, CondaName, Digest, Line, Name, Version, WheelName

Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes."""


class Wheel(Frozen, frozen=True, kw_only=True):
    """A distribution as a wheel file, downloadable or bundled."""

    name: Name
    version: Version
    filename: WheelName
    sha256: Digest
    """Of the wheel file."""
    size: Size
    """Of the wheel file."""
    site: Size = 0
    """0 is `Identity.layout`, n is `Identity.other_layouts[n - 1]`."""

    @property
    def key(self) -> str:
        """Identifies the wheel within the environment, where several site directories may contain the same distribution."""
        return f"{self.name}@{self.site}" if self.site else self.name

    @property
    def label(self) -> str:
        """The name by which the layers of a spec list it."""
        return f"{self.key}=={self.version}"


class CondaPackage(Frozen, frozen=True, kw_only=True):
    """A conda package as an archive, downloadable or bundled."""

    name: CondaName
    version: Line
    build: Line
    subdir: CondaName
    """`linux-64`, `noarch`."""
    filename: CondaFile
    """`<name>-<version>-<build>.conda` or `.tar.bz2`."""
    sha256: Digest
    """Of the archive."""
    size: Size
    """Of the archive."""

    @property
    def key(self) -> str:
        """Identifies the package within the environment. The prefix distinguishes it from a wheel of the same name."""
        return f"conda/{self.name}"

    @property
    def label(self) -> str:
        """The name by which the layers of a spec list it."""
        return f"{self.key}=={self.version}"


Artifact = Wheel | CondaPackage


class TreeBlob(Frozen, frozen=True, kw_only=True):
    """A file tree that is stored as a layer tar."""

    sha256: Digest
    """Of the uncompressed tar: the layer's diff ID."""
    size: Size
    """Of the uncompressed tar."""
    files: Size
    """With directories."""
