"""Artifacts: the things with a sha256 that an image is made of."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from repro_env.model.codec import Frozen
from repro_env.model.text import CondaFile, CondaName, Digest, Line, Name, Version, WheelName

Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Bytes."""


class Wheel(Frozen, frozen=True, kw_only=True):
    """One distribution as a wheel file: linked by URL or carried as a blob, either way the same bytes."""

    name: Name
    version: Version
    filename: WheelName
    sha256: Digest
    """Of the wheel file."""
    size: Size
    """Of the wheel file, in bytes."""
    place: Size = 0
    """Which layout of the identity it is installed by: 0 is `layout`, n is `others[n - 1]`."""

    @property
    def key(self) -> str:
        """Tells it from every other one of the environment: one name may be installed in several places."""
        return f"{self.name}@{self.place}" if self.place else self.name


class CondaPackage(Frozen, frozen=True, kw_only=True):
    """One conda package as an archive: linked by URL or carried as a blob, either way the same bytes."""

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
    """Of the archive, in bytes."""

    @property
    def key(self) -> str:
        """Tells it from every wheel: a name may be both."""
        return f"conda/{self.name}"


class TreeBlob(Frozen, frozen=True, kw_only=True):
    """A file tree that travels as one layer tar: base, interpreter, overlay, source."""

    sha256: Digest
    """Of the uncompressed tar, so it is the layer's diff ID too."""
    size: Size
    """Of the uncompressed tar, in bytes."""
    files: Size
    """How many entries, folders included."""
