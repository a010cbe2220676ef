"""The comparison of an environment with its packages and wheels, remembered by all that it is a function of.

What decides it was seen anew: every path with its kind, mode and key, what the system's layers hold, which packages
and wheels there are. So a second capture need not ask 40,000 times what it found to be equal before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from repro_env.base.tree import Tree
from repro_env.lock.compose import Composition
from repro_env.lock.places import Place
from repro_env.model import codec
from repro_env.model.artifact import CondaPackage, Wheel
from repro_env.model.image import Layer
from repro_env.model.spec import Rules
from repro_env.store.facts import FactCache

_KIND = "compared"
_RULE = 1
"""Part of the key; a change of what a comparison finds needs the next number."""


class Compared(msgspec.Struct, frozen=True):
    compositions: tuple[Composition, ...]
    """Of the places."""
    layers: tuple[Layer, ...]
    """Of the packages and distributions."""


def key(
    places: Sequence[Place],
    trees: Sequence[Tree],
    packages: Sequence[CondaPackage],
    wheels: Sequence[Wheel],
    made: Mapping[str, bytes],
) -> str:
    """What a comparison depends on; empty when a file is too young to be known by its key."""
    if not all(place.settled for place in places):
        return ""
    below = [hashlib.sha256(msgspec.msgpack.encode(tree.entries)).hexdigest() for tree in trees]
    instead = {path: hashlib.sha256(data).hexdigest() for path, data in made.items()}
    looked = [(place.number, place.layout, place.state) for place in places]
    return codec.digest((_RULE, Rules(), looked, below, packages, wheels, instead))


def recall(key: str, facts: FactCache) -> Compared | None:
    return facts.recall(_KIND, key, Compared) if key else None


def remember(key: str, found: Compared, facts: FactCache) -> None:
    if key:
        facts.put(_KIND, key, codec.canonical(found))
