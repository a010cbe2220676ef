"""How the image and the workspace of a run are shown, and what is tried where the kernel refuses one way."""

from __future__ import annotations

from repro_env.model.codec import Frozen


class Strategy(Frozen, frozen=True, kw_only=True):
    """How the image and the workspace are shown."""

    root: str
    """`disk`: overlay, its upper side on disk. `memory`: overlay, its upper side in memory. `links`: no overlay."""
    workspace: str
    """`overlay` or `copy`."""


BEST = Strategy(root="disk", workspace="overlay")
_NEXT = {"disk": "memory", "memory": "links"}


def choose(strategy: Strategy, refused: frozenset[str]) -> Strategy | None:
    """What to try after the kernel refused `root`, `workspace` or both of a strategy; None when nothing is left."""
    root = _NEXT.get(strategy.root, "") if "root" in refused else strategy.root
    work = ("copy" if strategy.workspace == "overlay" else "") if "workspace" in refused else strategy.workspace
    return Strategy(root=root, workspace=work) if root and work else None
