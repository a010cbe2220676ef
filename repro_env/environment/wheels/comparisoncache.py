"""Cache the comparison of an environment with its packages and wheels, keyed by everything that determines the result.

The key is computed from the current state: every path with its kind, mode and key, the system layers, the packages and
the wheels. A second capture then skips 40,000 comparisons that found no difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from repro_env.environment.python.sites import Site
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels.composition import Composition
from repro_env.schema import codec
from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.image import Layer
from repro_env.schema.spec import Rules
from repro_env.store.facts import FactCache

_KIND = "compared"
_RULE = 1
"""Part of the key; increment it when comparisons find something else."""


class Comparison(msgspec.Struct, frozen=True):
    compositions: tuple[Composition, ...]
    """One per site."""
    layers: tuple[Layer, ...]
    """The layers of packages and distributions."""


def key(
    sites: Sequence[Site],
    trees: Sequence[Tree],
    packages: Sequence[CondaPackage],
    wheels: Sequence[Wheel],
    generated: Mapping[str, bytes],
) -> str:
    """The key of a comparison; empty if a file was modified so recently that its key may not identify its content."""
    if not all(site.settled for site in sites):
        return ""
    tree_digests = [hashlib.sha256(msgspec.msgpack.encode(tree.entries)).hexdigest() for tree in trees]
    generated_digests = {path: hashlib.sha256(data).hexdigest() for path, data in generated.items()}
    site_states = [(site.number, site.layout, site.state) for site in sites]
    return codec.digest((_RULE, Rules(), site_states, tree_digests, packages, wheels, generated_digests))


def recall(key: str, facts: FactCache) -> Comparison | None:
    return facts.recall(_KIND, key, Comparison) if key else None


def remember(key: str, found: Comparison, facts: FactCache) -> None:
    if key:
        facts.put(_KIND, key, codec.canonical(found))
