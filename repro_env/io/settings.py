"""What pip's configuration comes from: variables, files, the pip at hand. Known without starting pip, which takes long."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

_NAMES = ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME")
"""Variables that decide which files pip reads; all that begin with `PIP_` decide too."""


class Settings(msgspec.Struct, frozen=True):
    """What pip said it is configured with, and what has to be unchanged for it to say so again."""

    files: tuple[str, ...]
    """All that it may read, whether they are there or not."""
    state: str
    """`state_of` them."""
    there: tuple[tuple[str, bool], ...]
    """Locations that may be plain paths, and whether they were there."""
    shown: tuple[str, ...]
    """`Configuration.shown`: redacted."""

    @property
    def hold(self) -> bool:
        """Whether all of that is as it was."""
        return state_of(self.files) == self.state and all(Path(path).exists() is there for path, there in self.there)


def key(prefix: str) -> str:
    """Which configuration is asked for: the variables, the folder, the pip. Only for hashing: it may hold credentials."""
    variables = sorted((name, value) for name, value in os.environ.items() if name.startswith("PIP_") or name in _NAMES)
    return repr((_pip(), sys.prefix, prefix, _folder(), variables))


def state_of(files: Iterable[str]) -> str:
    """Over the bytes of files; one that is not there, or cannot be read, counts as such."""
    hasher = hashlib.sha256()
    for name in files:
        hasher.update(_content(name))
    return hasher.hexdigest()


def _content(name: str) -> bytes:
    try:
        return b"+" + hashlib.sha256(Path(name).read_bytes()).digest()
    except OSError as error:
        return b"%d\n" % (error.errno or 0)


def _folder() -> str:
    """The current folder, which relative locations start from."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _pip() -> tuple[object, ...]:
    """Which pip: its place, and the file that holds its version."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        return ("none",)
    facts = Path(spec.origin).stat()
    return spec.origin, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
