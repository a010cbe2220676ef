"""The indexes and find-links of pip's configuration, kept until a file or variable that pip reads them from changes.

pip takes 0.2 s to import, and an environment whose wheels are all proven needs nothing else of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from repro_env.io.files import Key, key_of
from repro_env.io.indexhttp import Session, local_path
from repro_env.io.pip import configuration_files, origin
from repro_env.schema import codec, redact
from repro_env.store.facts import FactCache
from repro_env.store.hashes import SETTLED

_KIND = "pip-configuration"
"""Kind of these facts, by everything but the files that decides what pip reads."""


class _Kept(msgspec.Struct):
    directory: str
    """The working directory if a location may be relative to it, else empty."""
    files: dict[str, Key | None]
    """Every file that pip may read, with its key; None for a missing one."""
    shown: tuple[str, ...]


def shown(session: Session, prefix: str, facts: FactCache) -> tuple[str, ...]:
    """Return `session.configuration.shown`. `prefix`: the environment whose `pip.conf` applies."""
    sources = session.sources
    names = [name for name in os.environ if name.startswith(("PIP_", "XDG_")) or name == "HOME"]
    values = [*sources.indexes, *sources.find_links, *(os.environ[name] for name in names)]
    if any(redact.secretless(value) != value for value in values):
        return session.configuration.shown  # a short password could be found from the hash of a key
    place = (prefix, origin(), os.getuid())
    key = codec.digest_of(repr((names, values, sources.replaces_default, place)).encode("utf-8", "surrogateescape"))
    kept = facts.recall(_KIND, key, _Kept)
    here = str(Path.cwd())
    if kept is not None and kept.directory in ("", here) and kept.files == _states(kept.files):
        return kept.shown
    latest = time.time_ns() - SETTLED
    files = _states(configuration_files(prefix))
    found = session.configuration
    locations = [*found.indexes, *found.find_links]
    paths = [str(local_path(location) or location) for location in locations]
    files |= _states(paths)  # whether it exists decides how it is shown
    is_settled = all(state is None or max(state[3:]) < latest for state in files.values())
    if is_settled and files == _states(files) and all(redact.url(location) == location for location in locations):
        others = (*files, *sources.indexes, *sources.find_links)
        is_relative = any(path.startswith(here) for path in paths) or not all(path[:1] == "/" or "://" in path for path in others)
        facts.put(_KIND, key, codec.canonical(_Kept(here if is_relative else "", files, found.shown)))
    return found.shown


def _states(paths: Iterable[str]) -> dict[str, Key | None]:
    return {path: _state(path) for path in paths}


def _state(path: str) -> Key | None:
    try:
        return key_of(os.stat(path))  # noqa: PTH116 - follows symlinks
    except OSError:
        return None
