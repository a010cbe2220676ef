"""What an output is for, by its name: a result, a log, or what is another each time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

Kind = Literal["result", "log", "volatile"]
"""What a run is for; what it says meanwhile; what is another each time."""
_VOLATILE = (
    "*.pid",
    "*.pyc",
    "*.prof",
    "*.nsys-rep",
    "*.ncu-rep",
    "*.trace.json",
    "*.trace.json.gz",
    "emissions.csv",
    "*-shm",
    ".DS_Store",
    "wandb-metadata.json",
    "*.wandb",
    "debug-internal.log",
    "debug-cli.*.log",
)
_VOLATILE_PATHS = (
    re.compile(r"(?:.*/)?core\.\d+"),
    re.compile(r"(?:.*/)?wandb/(?:[^/]*|.*/logs/.*|.*/tmp/.*)"),
    re.compile(r"(?:.*/)?mlruns/(?:.*/tags/.*|.*/meta\.yaml)"),
    re.compile(r"(?:.*/)?catboost_info/time_left\.tsv"),
    # The manifest of a checkpoint of ours names the run and the time; what it vouches for is compared.
    re.compile(r"(?:.*/)?\d{6}-step-\d+/(?:manifest\.json|SHA256SUMS)"),
)
_LOGS = ("*.log", "*.out", "*.err", "log.txt", "*.log.txt", "*_log.txt", "stdout*", "stderr*", "events.out.tfevents*")
_LOG_PATHS = (re.compile(r"(?:.*/)?wandb/.*/files/(?:output\.log|config\.yaml)"),)
_TENSORS = (".safetensors", ".pt", ".pth", ".ckpt", ".npz", ".npy", ".pkl", ".pickle", ".joblib")
_PACKED = re.compile(r".*\.(?:pkl|pickle|joblib)(?:\.(?:gz|bz2|xz|lzma|z))?", re.DOTALL)


def kind_of(path: str, results: Sequence[str] = (), ignored: Sequence[str] = ()) -> Kind:
    """The user's globs first; then what is known of names; else a result."""
    if matches(path, ignored):
        return "volatile"
    if matches(path, results):
        return "result"
    name = path.rpartition("/")[2]
    if any(pattern.fullmatch(path) for pattern in _LOG_PATHS):
        return "log"
    if any(fnmatchcase(name, glob) for glob in _VOLATILE) or any(pattern.fullmatch(path) for pattern in _VOLATILE_PATHS):
        return "volatile"
    return "log" if any(fnmatchcase(name, glob) for glob in _LOGS) else "result"


def matches(path: str, globs: Sequence[str]) -> bool:
    """A glob means a whole path, a name, or all in a folder."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path, glob) or fnmatchcase(name, glob) or path.startswith(glob.rstrip("/") + "/") for glob in globs)


def holds_tensors(path: str, start: bytes) -> bool:
    """Whether `inside/compare.py` can look into a file of this name that begins with these bytes: tensors, a zip, a database."""
    return bool(path.endswith(_TENSORS) or _PACKED.fullmatch(path) or start[:4] == b"PK\x03\x04" or start[:8] == b"SQLite f")
