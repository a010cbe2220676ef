"""Arguments that several use cases have."""

from __future__ import annotations

import os
from pathlib import Path

from repro_env.runs.start.request import Pairs, pairs_of

__all__ = ["Pairs", "absolute", "absolute_pairs_of", "pairs_of"]


def absolute_pairs_of(paths: Pairs) -> tuple[tuple[Path, str], ...]:
    """Return (SRC, DST) for each path, as absolute paths without `..`. DST is SRC if it is not given."""
    pairs = ((Path(os.path.abspath(source)), target) for source, target in pairs_of(paths))  # noqa: PTH100 - without `..`
    return tuple((source, target.rstrip("/") or str(source)) for source, target in pairs)


def absolute(path: Path | str | None) -> Path | None:
    """Return the absolute path, if there is one."""
    return None if path is None else Path(path).absolute()
