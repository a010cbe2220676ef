"""Detect whether pip's configuration has changed, without starting pip, which is slow."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

_NAMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME")
"""Variables that decide which files pip reads, in addition to those that begin with `PIP_`."""


class Settings(msgspec.Struct, frozen=True):
    """pip's configuration as stored in the cache, and the facts that show whether it is still current."""

    files: tuple[str, ...]
    """Paths of all files that pip may read, including those that do not exist."""
    digest: str
    """`digest_of_files` of these files."""
    paths: tuple[tuple[str, bool], ...]
    """Locations that may be paths, and whether they exist."""
    shown: tuple[str, ...]
    """`http.Configuration.shown`: redacted."""

    @property
    def is_current(self) -> bool:
        """Whether the files and paths have not changed."""
        return digest_of_files(self.files) == self.digest and all(Path(path).exists() is exists for path, exists in self.paths)


def key(prefix: str) -> str:
    """Return what selects the configuration: variables, current directory and pip version. May contain credentials: hash it."""
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("PIP_") or name in _NAMES)
    return repr((_pip(), sys.prefix, prefix, _directory(), variables))


def digest_of_files(paths: Iterable[str]) -> str:
    """Return a digest of the contents of files. The error code takes the place of a file that cannot be read."""
    hasher = hashlib.sha256()
    for path in paths:
        hasher.update(_content(path))
    return hasher.hexdigest()


def _content(path: str) -> bytes:
    try:
        return b"+" + hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError as error:
        return b"%d\n" % (error.errno or 0)


def _directory() -> str:
    """Return the current directory, which relative locations refer to."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _pip() -> tuple[object, ...]:
    """Identify the installed pip by the file that contains its version."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        return ("none",)
    facts = Path(spec.origin).stat()
    return spec.origin, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
