"""The image as a value: layers by diff ID, a config, and the ID computed from it (OCI image spec)."""

from __future__ import annotations

from typing import Literal

from repro_env.model.codec import Frozen
from repro_env.model.environment import Variable
from repro_env.model.text import Digest, Line

LayerKind = Literal["base", "unowned", "interpreter", "conda", "distributions", "overlay", "marker"]
"""Lowest first. `unowned`: libraries and programs of the machine that belong to no package of its."""


class Layer(Frozen, frozen=True, kw_only=True):
    """One layer: what its tar hashes to, and what it holds, in words."""

    kind: LayerKind
    diff_id: Digest
    holds: tuple[Line, ...]
    """`name==version` of each distribution or conda package in it; empty for the other kinds."""


class Config(Frozen, frozen=True, kw_only=True):
    """The part of the image config that is ours to choose; the rest is fixed by rule."""

    env: tuple[Variable, ...]
    """Sorted by name. `PATH` starts with the environment's own scripts folder. The working folder is always `/`."""


class Expected(Frozen, frozen=True, kw_only=True):
    """What capture computed from the installed files, and rebuild has to reach from the wheels."""

    layers: tuple[Layer, ...]
    """Lowest first."""
    image_id: Digest
