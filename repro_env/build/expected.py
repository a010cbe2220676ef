"""Every path that a spec's image shows, computed from its identity: its carried trees and its wheels' own facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from repro_env.build import conda
from repro_env.image import conda as linking
from repro_env.image import config, stack, tar
from repro_env.image import wheel as rule
from repro_env.image.entry import Entry
from repro_env.image.flat import flatten
from repro_env.image.foreign import Node
from repro_env.io.files import walk
from repro_env.model.artifact import TreeBlob, Wheel
from repro_env.model.errors import ArtifactError, BuildError
from repro_env.model.spec import Spec
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, open_facts

_HINT = "the spec was edited or damaged; restore it or capture again"
_REBUILD = "repro-env rebuild, which fetches what is missing, or capture again"


Known = Callable[[Wheel], rule.Facts]


def entries(spec: Spec, folder: Path, store: Store, known: Known | None = None) -> list[Entry]:
    """Sorted, every parent there, every file with its sha256. `folder` holds the spec, and `blobs/`.

    `known`: asked for a wheel that neither the store nor the folder knows.

    Raises `ArtifactError` when a tree or what is known of a wheel is missing, `BuildError` when the spec contradicts itself.
    """
    identity = spec.identity
    layers: list[Iterable[Entry]] = [
        _tree(one, folder, store) for one in (identity.base, identity.unowned, identity.interpreter.tree) if one is not None
    ]
    versions = {one.key: one.version for one in identity.packages}
    versions |= {one.key: one.version for one in identity.distributions}
    for kind, made in (("conda", _packages(spec, store)), ("distributions", _wheels(spec, folder, store, known))):
        groups = stack.layers(made)
        told = [one.holds for one in spec.expected.layers if one.kind == kind]
        if [tuple(f"{name}=={versions[name]}" for name in group.names) for group in groups] != told:
            raise BuildError("the expected layers do not hold what the identity names", where="expected", hint=_HINT)
        layers += [group.entries for group in groups]
    if identity.overlay is not None:
        layers.append(_tree(identity.overlay, folder, store))
    layers.append([entry for entry, _ in config.marker(identity)])
    return flatten([[node(entry) for entry in held] for held in layers]).entries()


def node(entry: Entry) -> Node:
    """The entry as a member of a layer's tar says it."""
    return Node(
        path=entry.path,
        kind=entry.kind,
        mode=tar.mode(entry),
        size=entry.size,
        sha256=entry.sha256,
        target=entry.target,
    )


def _packages(spec: Spec, store: Store) -> dict[str, rule.Installed]:
    found = {}
    for one in spec.identity.packages:
        facts = conda.known(one, spec.identity.layout, store)
        if facts is None:
            raise ArtifactError("nothing is known of what it becomes", where=one.filename, hint=_REBUILD)
        found[one.key] = linking.canonical(facts, spec.identity.layout)
    return found


def _wheels(spec: Spec, folder: Path, store: Store, known: Known | None) -> dict[str, rule.Installed]:
    identity = spec.identity
    return {
        one.key: rule.canonical(_facts(one, folder, store, known), identity.layout_of(one), name=one.name)
        for one in identity.distributions
    }


def _facts(one: Wheel, folder: Path, store: Store, known: Known | None) -> rule.Facts:
    """What is known of a wheel, or stands in the one that is here."""
    found = store.facts.recall(FACTS, one.sha256, rule.Facts)
    if found is not None:
        return found if found.filename == one.filename else msgspec.structs.replace(found, filename=one.filename)
    path = store.blobs.path(one.sha256) or Carried(folder / "blobs").file(one.sha256, one.size, store.blobs)
    if path is None and known is not None:
        return known(one)
    if path is None:
        raise ArtifactError("nothing is known of its wheel", where=f"{one.name}=={one.version}", hint=_REBUILD)
    return open_facts(path, one.filename)


def _tree(blob: TreeBlob, folder: Path, store: Store) -> list[Entry]:
    carried = Carried(folder / "blobs")
    there = store.layers.path(blob.sha256)
    if carried.path(blob.sha256) is None and there is not None:
        found = tuple(walk(there))
        known_hashes = store.hashes.of(there, found)
        # A removed path is a device 0:0 there (overlayfs), and nothing else is a device.
        return [
            Entry(
                one.path,
                "gone" if one.kind == "other" else one.kind,
                one.executable,
                one.size,
                known_hashes.get(one.path, ""),
                one.target,
            )
            for one in found
        ]
    return carried.entries(blob, store.facts)
