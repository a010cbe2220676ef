"""Arguments that several use cases have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Pairs = Mapping[str, str] | Sequence[str | tuple[str, str]]
"""Paths to mount: `{SRC: DST}` or `[(SRC, DST)]`, or `[SRC]` for the same absolute path in the run."""


def pairs_of(paths: Pairs) -> tuple[tuple[str, str], ...]:
    """Return (SRC, DST) for each path; DST is empty if it is not given."""
    if isinstance(paths, Mapping):
        return tuple(paths.items())
    return tuple(path if isinstance(path, tuple) else (str(path), "") for path in paths)


def absolute_pairs_of(paths: Pairs) -> tuple[tuple[Path, str], ...]:
    """Return (SRC, DST) for each path, as absolute paths without `..`. DST is SRC if it is not given."""
    pairs = ((Path(os.path.abspath(source)), target) for source, target in pairs_of(paths))  # noqa: PTH100 - without `..`
    return tuple((source, target.rstrip("/") or str(source)) for source, target in pairs)


def absolute(path: Path | str | None) -> Path | None:
    """Return the absolute path, if there is one."""
    return None if path is None else Path(path).absolute()
