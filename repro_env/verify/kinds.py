"""What an output is for, and how it can be looked into, by its name and its first bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["result", "console", "ignored"]
"""What decides; what the command printed, which is told; what the user or the library list leaves out as a whole."""
_TENSORS = (".safetensors", ".pt", ".pth", ".ckpt", ".npz", ".npy", ".pkl", ".pickle", ".joblib")
_PACKED = re.compile(r".*\.(?:pkl|pickle|joblib)(?:\.(?:gz|bz2|xz|lzma|z))?", re.DOTALL)


def matches(path: str, globs: Sequence[str]) -> bool:
    """A glob means a whole path, a name, or all in a directory."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path, glob) or fnmatchcase(name, glob) or path.startswith(glob.rstrip("/") + "/") for glob in globs)


def holds_tensors(path: str, start: bytes) -> bool:
    """Whether `inside/compare.py` can look into a file of this name that begins with these bytes: tensors, a database, an archive."""
    return bool(path.endswith(_TENSORS) or _PACKED.fullmatch(path) or start[:4] == b"PK\x03\x04" or start[:8] == b"SQLite f")
