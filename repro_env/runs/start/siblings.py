"""Directories next to the project (`../data`, `../results`) that its code or the command names. A live run gets a copy of them."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from repro_env.environment.source import siblings
from repro_env.environment.source.selection import CAP
from repro_env.io.files import Found, walk
from repro_env.runs.start import sourcedirectory
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import plan
from repro_env.schema.environment import Excluded
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Mount, SourceFact
from repro_env.schema.spec import Spec
from repro_env.store.store import Store


def names_for_run(
    options: RunOptions, spec: Spec, directory: Path | None, here: Path, *, mounts: Sequence[Mount], store: Store
) -> tuple[str, ...]:
    """Return the names (`../data`) that a run of `directory` may see: those from the capture and those in the command.

    Empty if the code was not captured in this directory with this store. `here`: the working directory inside the run.
    """
    recorded = sourcedirectory.recall_siblings(spec, directory, store)
    if recorded is None:
        return ()
    workspace = plan.workspace_of(spec)
    paths = (posixpath.relpath(path, workspace) for path in plan.named_paths(options.command, here=str(here)))
    in_command = ("/".join(path.split("/")[:2]) for path in paths)
    return tuple(_free_names(siblings.names((*recorded, *in_command)), spec, image=_image(spec, store), mounts=mounts))


def _image(spec: Spec, store: Store) -> list[Path]:
    paths = (store.layers.path(layer.diff_id) for layer in spec.expected.layers)
    return [path for path in paths if path is not None]


def _free_names(names: Iterable[str], spec: Spec, *, image: Sequence[Path] = (), mounts: Sequence[Mount] = ()) -> Iterator[str]:
    """Yield the names whose path in a run is free: it is not in a mount, in the environment or in the image (its layers)."""
    for name in names:
        target = _path_in_run(spec, name)
        mounted = any(
            f"{mount.target}/".startswith(f"{target}/") or f"{target}/".startswith(f"{mount.target}/") for mount in mounts
        )
        if mounted or any(os.path.lexists(f"{tree}{target}") for tree in image):
            continue
        with contextlib.suppress(UsageError):
            plan.check_mounts(spec, [Mount(kind="data", source=target, target=target)])
            yield name


def find_at_capture(
    spec: Spec, mentioned: Iterable[str], excluded: Sequence[Excluded], data: Sequence[Path], store: Store
) -> tuple[str, ...]:
    """Return the directories next to the captured source that its code mentions, and that a run gets a copy of.

    `data`: paths that the user names.
    """
    workspace = plan.workspace_of(spec)
    ignored = accumulate(sorted(row.size for row in excluded if row.why.startswith("git-ignored")))
    most = CAP - max((size for size in ignored if size <= CAP), default=0)
    names = _free_names(siblings.names(mentioned), spec)
    return tuple(sorted(siblings.look(Path(workspace), names, excluded=(*data, store.root), most=most)))


def drop_missing(fact: SourceFact, spec: Spec, store: Store) -> SourceFact:
    """Return the source of a recorded run without the data that was removed from the store.

    Records are not trusted: a tree with files at other paths counts as missing.
    """
    if fact.with_ignored is not None and store.layers.path(fact.with_ignored) is None:
        fact = msgspec.structs.replace(fact, ignored=(), with_ignored=None)
    tree = None if fact.siblings_tree is None else store.layers.path(fact.siblings_tree)
    paths = [f"{_path_in_run(spec, name)}/" for name in _free_names(fact.siblings, spec, image=_image(spec, store))]
    complete = tree is not None and paths and all(os.path.isdir(f"{tree}{path}") for path in paths)  # noqa: PTH112
    if tree is None or not complete or not all(_is_along(found, paths) for found in walk(tree)):
        fact = msgspec.structs.replace(fact, siblings=(), siblings_tree=None)
    return fact


def _is_along(found: Found, targets: Sequence[str]) -> bool:
    """Whether an entry is one of the targets, below one, or a directory above one."""
    path = f"/{found.path}/"
    return any(path.startswith(target) or (target.startswith(path) and found.kind == "dir") for target in targets)


def _path_in_run(spec: Spec, name: str) -> str:
    """Return the path at which a run sees a directory next to the project."""
    return posixpath.normpath(f"{plan.workspace_of(spec)}/{name}")
