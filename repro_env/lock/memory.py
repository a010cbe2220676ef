"""What the store remembers of earlier locks, as values."""

from __future__ import annotations

from typing import TypeVar

from repro_env.model import codec
from repro_env.model.errors import SpecError
from repro_env.store.store import Store

T = TypeVar("T")


def remembered(store: Store, kind: str, key: str, into: type[T]) -> T | None:
    """A value of the store's facts; one that another version wrote in another form counts as absent."""
    value = store.facts.get(kind, key)
    try:
        return codec.decode(value, into, where="the store's facts") if value is not None else None
    except SpecError:
        return None
