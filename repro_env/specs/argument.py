"""Open the spec that a command names: a directory or file, a bundle file of `repro-env pack`, or a registry's reference.

A bundle file or a spec in a registry is first copied into a directory of the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.schema.errors import SpecError, UsageError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.bundle import is_pack, unpack
from repro_env.store.specs import archive
from repro_env.store.specs.lookup import locate, runs_directory
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.registry.reference import Reference


class Opened(msgspec.Struct, frozen=True):
    spec: Spec
    directory: Path
    """Directory of the spec and of `blobs/`."""
    runs: Path | None = None
    """Default directory for its runs; None for `runs` next to the spec's directory."""


SpecName = Opened | Path | str | None
"""A spec, or its name: a spec.json, its directory, a bundle file, or a reference; None for the nearest spec."""


def open_spec(name: SpecName, start: Path | None = None, store: Store | None = None, tell: Tell = SILENT) -> Opened:
    """Open a spec; without a name, the nearest spec from `start` upwards, by default the current directory.

    The store is opened if it is needed and `store` is None. Raises `SpecError`, `ArtifactError`, `NetworkError`, `DiskError`.
    """
    if isinstance(name, Opened):
        return name
    start = start or current_directory()
    if name is None:
        return Opened(*locate(None, start))
    word = str(name)
    path = start / word
    if path.is_file() and is_pack(path):
        directory = unpack(path, store or Store.open())
    elif not path.exists() and (reference := reference_of(word)) is not None:
        from repro_env.specs.artifact import pull_spec

        directory = pull_spec(reference, store or Store.open(), tell)
    else:
        spec, directory = locate(word, start)
        return Opened(spec, directory, archive.runs_of(directory))
    spec, _ = locate(str(directory), start)
    return Opened(spec, directory, start / "runs")


def project_of(opened: Opened) -> Path:
    """Return the directory of the project: the one with the spec's directory, or the working directory for a spec from elsewhere."""
    return (opened.runs or runs_directory(opened.directory)).parent


def current_directory() -> Path:
    """Return the current directory. Raises `UsageError` if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory was removed", where=".", hint="change to an existing directory") from None


def reference_of(word: str) -> Reference | None:
    """Return a word as a registry's reference; None if it does not name a registry, since it may then be a missing path.

    Raises `SpecError` if it names a registry and is not a valid reference.
    """
    first, slash, _ = word.partition("/")
    is_host = first == "localhost" or ":" in first or "." in first.strip(".")
    if not slash or not is_host:
        return None
    from repro_env.registry.reference import parse

    try:
        return parse(word)
    except UsageError as error:
        hint = f"name an existing file, or a reference such as {error.hint.removeprefix('for example: ')}"
        raise SpecError(error.what, where=word, hint=hint) from None
