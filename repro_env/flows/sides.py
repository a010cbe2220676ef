"""The two sides of a comparison: a spec, or the live environment locked and not written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.base.tree import Tree
from repro_env.capture.target import Target
from repro_env.flows import trees
from repro_env.flows.paths import Owners
from repro_env.flows.trees import Held
from repro_env.model.image import Layer
from repro_env.model.spec import BaseHint, Identity, Observed, Spec
from repro_env.model.talk import Tell
from repro_env.store.store import Store
from repro_env.verify import environment
from repro_env.verify.environment import Part


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one environment."""

    name: str
    """As it was named."""
    kind: Literal["spec", "live"]
    identity: Identity
    digest: str
    """The spec digest."""
    image_id: str
    layers: tuple[Layer, ...]
    observed: Observed
    tree: Callable[[Part], Held | None]
    """None for one whose paths cannot be told."""
    owners: Callable[[], Owners]


def of_spec(spec: Spec, folder: Path, name: str, store: Store) -> Side:
    return Side(
        name=name,
        kind="spec",
        identity=spec.identity,
        digest=spec.digest,
        image_id=spec.expected.image_id,
        layers=spec.expected.layers,
        observed=spec.observed,
        tree=lambda part: trees.captured(environment.tree(spec.identity, part), folder, store),
        owners=lambda: Owners.known(spec.identity, spec.hints.packages, store),
    )


def of_live(
    python: Target | str,
    environ: Mapping[str, str],
    *,
    workspace: Path,
    programs: tuple[str, ...],
    seed: int,
    store: Store,
    tell: Tell,
    base: BaseHint | None = None,
    added: tuple[str, ...] = (),
) -> Side:
    """Lock an environment as a capture would, and write nothing. Raises what a capture raises.

    `base`: the image of a registry that it is to stand on, as it was at capture; else the base is cut from this machine.
    `added`: as `capture.variables.sort` takes it.
    """
    from repro_env.lock import assemble, environment, layers, observe
    from repro_env.lock.locked import check_unchanged, identity_of
    from repro_env.model import codec

    below = None
    if base is not None:
        from repro_env.base import pulled

        below = pulled.again(base, store, tell)
    locked = environment.lock(
        python, environ, workspace=workspace, programs=programs, store=store, tell=tell, base=below, added=added
    )
    identity = identity_of(locked, seed, lambda tree: layers.tree_blob(tree.entries, tree.contents, facts=store.facts))
    if locked.read:
        check_unchanged(locked)
    expected = assemble.expected(identity, locked.layers)
    live = locked.live
    held: dict[Part, Tree | None] = {
        "base": live.base,
        "unowned": live.unowned,
        "interpreter": live.interpreter,
        "overlay": locked.overlay,
    }
    return Side(
        name=locked.facts.command,
        kind="live",
        identity=identity,
        digest=codec.digest(identity),
        image_id=expected.image_id,
        layers=expected.layers,
        observed=observe.observed(locked, programs=programs),
        tree=lambda part: trees.Live(tree) if (tree := held[part]) is not None else trees.Listed(()),
        owners=lambda: Owners.known(identity, [one.hint for one in locked.packages], store),
    )
