"""The sides of a comparison: a spec, or a live environment, which is locked as for a capture. `parse_operand` finds them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.compare.environments import trees
from repro_env.compare.environments.trees import FileTree
from repro_env.environment.live import Request
from repro_env.environment.python.selection import Target
from repro_env.environment.system.tree import Tree
from repro_env.schema.errors import SpecError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec, TreeName
from repro_env.specs.argument import open_spec, reference_of
from repro_env.store.specs.files import SPEC
from repro_env.store.specs.lookup import DIRECTORY, locate
from repro_env.store.store import Store

_LIVE = "live"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One environment of a comparison."""

    name: str
    """The user's name for it."""
    kind: Literal["spec", "live"]
    spec: Spec
    """The spec; for a live environment, the one that a capture would write."""
    tree: Callable[[TreeName], FileTree]
    """Return one tree of the environment. Raises `ArtifactError` if it is damaged, or if its paths are not known."""


def spec_side(spec: Spec, directory: Path, name: str, store: Store) -> Side:
    """Return the side for a spec. `directory`: the directory with its `blobs/`."""
    return Side(
        name=name,
        kind="spec",
        spec=spec,
        tree=lambda part: trees.spec_tree(spec.identity.trees[part], directory, store),
    )


def live_side(
    target: Target, environ: Mapping[str, str], workspace: Path, store: Store, tell: Tell, *, like: Spec | None = None
) -> Side:
    """Lock an environment as a capture does, and write nothing. Raises what a capture raises.

    `workspace`: the directory of the code. `like`: the spec whose options are used, such as further programs.
    """
    from repro_env.environment import assembly, lock
    from repro_env.environment.wheels import layers

    request = Request(
        target=target,
        environ=environ,
        workspace=workspace,
        store=store,
        programs=like.observed.programs if like is not None else (),
        added=like.observed.variables.added if like is not None else (),
    )
    locked = lock.lock(request, tell)
    spec = assembly.spec(locked, lambda tree: layers.tree_blob(tree.entries, tree.contents, facts=store.facts))
    locked.check_unchanged()
    live = locked.live
    live_trees: dict[TreeName, Tree | None] = {
        "base": live.system.base,
        "unpackaged": live.system.unpackaged,
        "interpreter": live.interpreter,
        "overlay": locked.overlay,
    }
    return Side(name=live.facts.command, kind="live", spec=spec, tree=lambda part: trees.live_tree(live_trees[part]))


class LiveOperand(msgspec.Struct, frozen=True):
    name: str
    python: str | None
    """An interpreter or an environment's directory; None for the active environment, as `capture` chooses it."""


def parse_operand(word: str, start: Path, store: Store) -> Side | LiveOperand:
    """Return what a word names: a spec by its path or reference, else a live environment. Raises `SpecError` if it names nothing."""
    if word == _LIVE:
        return LiveOperand(_LIVE, None)
    path = Path(os.path.normpath(start / word))
    live = str(path) if "/" in word else word  # a word without a slash may be a program on PATH, which is resolved when it starts
    if path.is_dir():
        if not (path / SPEC).is_file() and not (path / DIRECTORY / SPEC).is_file() and _holds_python(path):
            return LiveOperand(word, live)
        return spec_side(*locate(word, start), word, store)
    if path.is_file() and path.suffix != ".json" and os.access(path, os.X_OK):
        return LiveOperand(word, live)
    if path.exists() or reference_of(word) is not None:
        opened = open_spec(word, start, store)
        return spec_side(opened.spec, opened.directory, word, store)
    if "/" not in word and shutil.which(word):
        return LiveOperand(word, word)
    raise SpecError(
        "this is neither a spec nor an environment",
        where=word,
        hint="name a spec, a Python interpreter, an environment's directory, or `live` for the active environment",
    )


def _holds_python(directory: Path) -> bool:
    return any(os.path.lexists(directory / "bin" / name) for name in ("python", "python3"))
