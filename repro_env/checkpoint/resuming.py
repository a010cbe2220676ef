"""Which checkpoint a training goes on from, and whether it is the training that this one is of. And `load`, for parts alone."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any, Optional

from repro_env.checkpoint import folder as of_folder
from repro_env.checkpoint import manifest, ranks
from repro_env.checkpoint import parts as of_parts
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.folder import Folder
from repro_env.checkpoint.manifest import Opened


def find(folder: Folder, path: Any) -> Optional[Opened]:
    """The one at `path`, or the youngest whole one of the folder; rank 0 looks for all. Raises `CheckpointError`."""

    def look() -> Optional[Opened]:
        return folder.choose() if path is None else of_folder.named(os.path.abspath(os.fspath(path)), None)

    found = ranks.by_first(look)
    return None if found is None else Opened(*found)


def same_training(opened: Opened, parts: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` if the training cannot resume unchanged; warn about parts that are not restored.

    `about`: the `data` and `splits` of this training.
    """
    was = opened.facts["world"].get("size")
    if was != ranks.size():
        raise CheckpointError(
            f"was written by {was} processes, and now there are {ranks.size()}",
            where=opened.path,
            hint="start as many; for the weights alone use checkpoint.load()",
        )
    others = [line for name in ("data", "splits") for line in manifest.changed(name, opened.facts[name], about[name])]
    if others:
        raise CheckpointError(
            "; ".join(others),
            where=opened.path,
            hint="resume with the same data and splits; for the weights alone use checkpoint.load()",
        )
    left = sorted(set(opened.facts["parts"]) - set(parts))
    if left:
        warnings.warn(
            f"{opened.path}: holds {', '.join(left)} too, which this training does not name: it is left behind",
            CheckpointWarning,
            stacklevel=4,
        )


def load(path: Any, *, best: Optional[str] = None, **parts: Any) -> dict[str, Any]:
    """Fill some parts from a checkpoint, or from the youngest whole (`best`: the best) of a folder. Its manifest.

    For evaluation, or to start another training: neither positions nor generators are touched.
    """
    opened = of_folder.named(os.path.abspath(os.fspath(path)), best)
    of_parts.fill(opened, {name: of_parts.inner(part) for name, part in parts.items()})
    if not ranks.rank():
        manifest.note(opened)
    return opened.facts
