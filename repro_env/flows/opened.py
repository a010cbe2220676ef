"""What the words of a command may name a spec by: a folder or file, a packed file, or a registry's reference."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.flows.locate import locate
from repro_env.model.spec import Spec


class Opened(msgspec.Struct, frozen=True):
    spec: Spec
    folder: Path
    """Holds the spec, and `blobs/` beside it."""


def opened(word: str | None, start: Path) -> Opened:
    """The spec that a word names. Raises `SpecError`."""
    return Opened(*locate(word, start))
