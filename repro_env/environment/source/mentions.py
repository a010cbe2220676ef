"""Find the paths that the code of a source names. The code is searched, never run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repro_env.io.files import Found, read_head

_LARGEST = 2_000_000
"""Maximum bytes of a file; larger files are not searched."""
_PATH = re.compile(rb"(?:[\"'](?:\./)?|[\"'}]/(?=\.\./))((?:\.\./){0,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60})(?=[/\"'])")
"""The start of a possible path, at the start of a string or after one (`here + "/../data"`). Hidden names do not match."""
_JOINED = re.compile(rb"[\"']\.\.\\?[\"']\)?\s*[,/]\s*\\?[\"']([A-Za-z0-9_][A-Za-z0-9_.-]{0,60})")
"""`"..", "data"` and `Path("..") / "data"`: the name of a sibling of the working directory."""
_SETTINGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".sh")
"""Suffixes of files with unquoted paths, for example the configuration of Hydra."""
_VALUE = re.compile(
    rb"(?:^|[\s\"'=:,\[]|\}/)(?:\./)?((?:\.\./){1,3}[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}|[A-Za-z0-9_][A-Za-z0-9_.-]{0,60}(?=/))",
    re.MULTILINE,
)
"""The start of a possible path in such a file, also after a reference (`${root}/../data`)."""


def mentioned_paths(root: Path, found: Sequence[Found]) -> frozenset[str]:
    """Return the start of each path in the strings of a source's code and settings: `data` of `data/x.csv`, `../data` of `../data/x.csv`.

    Python files, notebooks and settings are searched. Files that cannot be read are skipped.
    """
    paths: set[bytes] = set()
    for entry in found:
        if entry.kind == "file" and entry.path.endswith((".py", ".ipynb", *_SETTINGS)) and entry.size <= _LARGEST:
            text = read_head(root / entry.path, _LARGEST)
            if entry.path.endswith(_SETTINGS):
                paths.update(_VALUE.findall(text))
            else:
                paths.update(_PATH.findall(text), (b"../" + name for name in _JOINED.findall(text)))
    return frozenset(path.decode() for path in paths)
