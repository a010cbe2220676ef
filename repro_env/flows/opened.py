"""What the words of a command may name a spec by: a folder or file, a packed file, or a registry's reference.

A pack, and what is in a registry, becomes a folder in the store; from then on it is like any other spec's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.catalog import specs
from repro_env.flows.locate import locate
from repro_env.flows.packed import is_pack, unpacked
from repro_env.model.errors import SpecError, UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent, Tell
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.registry.reference import Reference


class Opened(msgspec.Struct, frozen=True):
    spec: Spec
    folder: Path
    """Holds the spec, and `blobs/` beside it."""
    runs: Path | None = None
    """Where runs of it are recorded, unless the user says; None is beside the folder."""


def opened(word: str | None, start: Path, store: Store | None = None, tell: Tell | None = None) -> Opened:
    """The spec that a word names; without one, the nearest from `start` upwards.

    `store` is opened where it is needed and not given. Raises `SpecError`, `ArtifactError`, `NetworkError`, `DiskError`.
    """
    if word is None:
        return Opened(*locate(None, start))
    path = start / word
    if path.is_file() and is_pack(path):
        folder = unpacked(path, store or Store.open())
    elif not path.exists() and (found := reference_of(word)) is not None:
        from repro_env.flows.pulled import pulled

        folder = pulled(found, store or Store.open(), tell or Silent())
    else:
        spec, folder = locate(word, start)
        return Opened(spec, folder, specs.runs_of(folder))
    spec, _ = locate(str(folder), start)
    return Opened(spec, folder, start / "runs")


def reference_of(word: str) -> Reference | None:
    """A word as a registry's reference; None unless it names its registry, since it may be a path that is not there.

    Raises `SpecError` for one that does and is no reference all the same.
    """
    first, slash, _ = word.partition("/")
    is_host = first == "localhost" or ":" in first or "." in first.strip(".")
    if not slash or not is_host:
        return None
    from repro_env.registry.reference import parse

    try:
        return parse(word)
    except UsageError as error:
        hint = f"there is no such file either; a reference is like {error.hint.removeprefix('for example: ')}"
        raise SpecError(error.what, where=word, hint=hint) from None
