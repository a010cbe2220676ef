"""Artifacts: the things with a sha256 that an image is made of."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from repro_env.model.codec import Frozen
from repro_env.model.text import Digest, Name, Version, WheelName

Size = Annotated[int, Meta(ge=0)]
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


class TreeBlob(Frozen, frozen=True, kw_only=True):
    """A file tree that travels as one layer tar: base, interpreter, overlay, source."""

    sha256: Digest
    """Of the uncompressed tar, so it is the layer's diff ID too."""
    size: Size
    """Of the uncompressed tar, in bytes."""
    files: Size
    """How many entries, folders included."""
