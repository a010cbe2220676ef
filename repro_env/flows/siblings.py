"""Directories beside the project (`../data`, `../results`) that its code or the command names: a live run sees a copy of them."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from repro_env.capture import siblings
from repro_env.capture.source import CAP
from repro_env.flows import sourcedir
from repro_env.flows.asked import Asked
from repro_env.io.files import Found, walk
from repro_env.model.environment import Excluded
from repro_env.model.errors import UsageError
from repro_env.model.run import Mount, SourceFact
from repro_env.model.spec import Spec
from repro_env.run import plan
from repro_env.store.store import Store


def of_run(
    asked: Asked, spec: Spec, directory: Path | None, here: Path, *, mounts: Sequence[Mount], store: Store
) -> tuple[str, ...]:
    """The names (`../data`) that a run of `directory` may see: those noted at capture and those in the command. Empty for
    code that was not captured in this directory with this store. `here`: the working directory inside the run.
    """
    noted = sourcedir.siblings(spec, directory, store)
    if noted is None or (asked.runner == "host" and not asked.private):
        return ()
    workspace = plan.workspace_of(spec)
    paths = (posixpath.relpath(path, workspace) for path in plan.named_paths(asked.command, here=str(here)))
    typed = ("/".join(path.split("/")[:2]) for path in paths)
    return tuple(free(siblings.names((*noted, *typed)), spec, image=_image(spec, store), mounts=mounts))


def _image(spec: Spec, store: Store) -> list[Path]:
    paths = (store.layers.path(layer.diff_id) for layer in spec.expected.layers)
    return [path for path in paths if path is not None]


def free(names: Iterable[str], spec: Spec, *, image: Sequence[Path] = (), mounts: Sequence[Mount] = ()) -> Iterator[str]:
    """The names whose place in a run is free: no mount, nothing of the environment and nothing of the image (its layers) is there."""
    for name in names:
        target = _place(spec, name)
        near = any(f"{mount.target}/".startswith(f"{target}/") or f"{target}/".startswith(f"{mount.target}/") for mount in mounts)
        if near or any(os.path.lexists(f"{tree}{target}") for tree in image):
            continue
        with contextlib.suppress(UsageError):
            plan.check_mounts(spec, [Mount(kind="data", source=target, target=target)])
            yield name


def at_capture(
    spec: Spec, mentioned: Iterable[str], excluded: Sequence[Excluded], data: Sequence[Path], store: Store
) -> tuple[str, ...]:
    """The directories beside the captured source that its code mentions, and that a run sees a copy of. `data`: named by the user."""
    workspace = plan.workspace_of(spec)
    ignored = accumulate(sorted(row.size for row in excluded if row.why.startswith("git-ignored")))
    most = CAP - max((size for size in ignored if size <= CAP), default=0)
    names = free(siblings.names(mentioned), spec)
    return tuple(sorted(siblings.look(Path(workspace), names, apart=(*data, store.root), most=most)))


def again(fact: SourceFact, spec: Spec, store: Store) -> SourceFact:
    """The source of a run that is run again, without the data that the store does not have any more.

    A record is not trusted: a tree that would put anything at another place counts as absent.
    """
    if fact.with_ignored is not None and store.layers.path(fact.with_ignored) is None:
        fact = msgspec.structs.replace(fact, ignored=(), with_ignored=None)
    tree = None if fact.siblings_tree is None else store.layers.path(fact.siblings_tree)
    places = [f"{_place(spec, name)}/" for name in free(fact.siblings, spec, image=_image(spec, store))]
    known = tree is not None and places and all(os.path.isdir(f"{tree}{place}") for place in places)  # noqa: PTH112
    if tree is None or not known or not all(_leads_to(found, places) for found in walk(tree)):
        fact = msgspec.structs.replace(fact, siblings=(), siblings_tree=None)
    return fact


def _leads_to(found: Found, places: Sequence[str]) -> bool:
    path = f"/{found.path}/"
    return any(path.startswith(place) or (place.startswith(path) and found.kind == "dir") for place in places)


def _place(spec: Spec, name: str) -> str:
    """Where a run sees a directory beside the project."""
    return posixpath.normpath(f"{plan.workspace_of(spec)}/{name}")
