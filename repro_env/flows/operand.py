"""What a word of `repro-env diff` means: a spec (its folder, packed, in a registry), a live environment, or an image of the store."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec

from repro_env.flows.locate import FILE, FOLDER, locate
from repro_env.flows.opened import opened, reference_of
from repro_env.model.errors import SpecError, UsageError
from repro_env.model.spec import Spec
from repro_env.store.store import Store

LIVE = "live"
_DIGITS = re.compile(r"(?:sha256:)?[0-9a-f]{4,64}")


class SpecOperand(msgspec.Struct, frozen=True):
    name: str
    spec: Spec
    folder: Path
    """Holds the spec, and `blobs/`."""


class LiveOperand(msgspec.Struct, frozen=True):
    name: str
    python: str | None
    """A binary or an environment's folder; None for the active environment, as `capture` chooses it."""


class ImageOperand(msgspec.Struct, frozen=True):
    name: str
    image_id: str


Operand = SpecOperand | LiveOperand | ImageOperand


def operand(word: str, start: Path, store: Store) -> Operand:
    """Paths come first, then images, then programs. Raises `SpecError` for a word that is none of these."""
    if word == LIVE:
        return LiveOperand(LIVE, None)
    path = Path(os.path.normpath(start / word))
    live = str(path) if "/" in word else word  # a bare word may be a program on PATH, which is looked up when it is started
    if path.is_dir():
        if not (path / FILE).is_file() and not (path / FOLDER / FILE).is_file() and _holds_python(path):
            return LiveOperand(word, live)
        return SpecOperand(word, *locate(word, start))
    if path.is_file() and path.suffix != ".json" and os.access(path, os.X_OK):
        return LiveOperand(word, live)
    if path.exists() or reference_of(word) is not None:
        which = opened(word, start, store)
        return SpecOperand(word, which.spec, which.folder)
    if _DIGITS.fullmatch(word):
        found = store.images.ids(word)
        if len(found) > 1:
            raise UsageError(f"begins the IDs of {len(found)} images", where=word, hint="give more digits")
        if found:
            return ImageOperand(word, found[0])
    elif "/" not in word and shutil.which(word):
        return LiveOperand(word, word)
    raise SpecError(
        "is no spec, no environment and no image of the store",
        where=word,
        hint="name a spec or its folder, a python or its environment's folder, an image ID, or `live` for the active environment",
    )


def _holds_python(folder: Path) -> bool:
    return any(os.path.lexists(folder / "bin" / name) for name in ("python", "python3"))
