"""The overlay: what the environment shows beside its packages and wheels, and what it uses beside itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from repro_env.base.tree import Tree, within
from repro_env.image.entry import Entry, entries_of, ordered
from repro_env.image.layout import HOME, inside
from repro_env.io.files import FileContents, Key, keys_of
from repro_env.lock import compose
from repro_env.lock.outside import Outside, linked
from repro_env.lock.places import Place
from repro_env.model.environment import Startup
from repro_env.store.store import Store


def overlay(
    compositions: Sequence[compose.Composition],
    observed: Sequence[Place],
    startup: Startup,
    beside: Sequence[Outside],
    held: Mapping[str, Entry],
    workspace: Path,
    made: Mapping[str, bytes],
    home: Mapping[str, bytes],
    store: Store,
) -> tuple[Tree | None, tuple[str, ...]]:
    """The tree, or None where there is nothing of the kind; and a line for each thing that is not held.

    `compositions`: of the places, in their order. `held`: the entries of all lower trees. `workspace`: a run shows it at
    its own path. `made`: what stands in the place of files of the first place. `home`: configuration, by its path below a
    home directory. Raises `CaptureError` for links to too much.
    """
    entries = [entry for one in compositions for entry in one.overlay]
    for one in beside:
        entries += entries_of(one.found, store.hashes.of(one.root, one.found), below=inside(str(one.root)))
    roots = [workspace, *(one.root for one in beside if one.named.is_dir())]
    left: list[str] = []
    links = linked(entries, observed, held, roots, left)
    for one in beside:
        links.follow(str(one.named))
    entries += _by_real_name(observed[0], startup)
    for place in observed:
        if place.layout.in_place:
            links.follow(place.layout.prefix)
    found, _ = links.finish(store.hashes)
    keys = links.keys
    for place in observed[1:]:
        keys |= keys_of(place.found, f"{place.root}/")
    for one in beside:
        keys |= keys_of(one.found, f"{inside(str(one.root))}/")
    parents = {entry.path.rpartition("/")[0] for entry in found}
    entries += [entry for entry in found if held.get(entry.path) != entry and entry.path not in parents]
    own = {f"{inside(HOME)}/{path}": data for path, data in home.items()}
    entries += [Entry(path, "file", size=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in own.items()]
    own |= {f"{observed[0].root}/{path}": data for path, data in made.items()}
    tree = Tree(entries=tuple(ordered(entries)), contents=_Contents(observed[0], keys, own)) if entries else None
    return tree, tuple(left)


def _by_real_name(place: Place, startup: Startup) -> list[Entry]:
    """A link at the real path of an environment that is reached through a symlink, where `sys.path` names it by that."""
    real = os.path.realpath(place.prefix)
    if place.layout.in_place or real == str(place.prefix) or not any(within(path, (real,)) for path in startup.sys_path):
        return []
    return [Entry(inside(real), "link", target=f"/{place.root}")]


class _Contents:
    """Overlay entries below the environment's place come from its prefix, all others from their own path.

    `keys`: of those others, by path from the root; `made`: contents that are not those of a file here, by the same path.
    """

    def __init__(self, place: Place, keys: Mapping[str, Key], made: Mapping[str, bytes]) -> None:
        self._made = made
        self._root = f"{place.root}/"
        self._environment = FileContents(place.prefix, strip=place.root, keys=keys_of(place.found))
        self._outside = FileContents(Path("/"), keys=keys)

    def chunks(self, entry: Entry) -> Iterator[bytes]:
        if entry.path in self._made:
            return iter([self._made[entry.path]])
        below = entry.path.startswith(self._root)
        return (self._environment if below else self._outside).chunks(entry)
