"""Compute every path of a spec's image from its identity: from its bundled trees and the facts of its wheels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from repro_env.delivery.builder.content import recall_package
from repro_env.delivery.builder.layers import HINT
from repro_env.io.files import walk
from repro_env.oci import conda as linking
from repro_env.oci import config, wheellayers
from repro_env.oci import wheel as rule
from repro_env.oci.entry import Entry, merge
from repro_env.schema.artifact import TreeBlob, Wheel
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.spec import Spec
from repro_env.store import layers as store_layers
from repro_env.store.packages.wheelfile import open_facts, recall_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

_REBUILD = "run `repro-env rebuild`, which fetches what is missing, or capture again"


FactsOf = Callable[[Wheel], rule.Facts]


def entries(spec: Spec, directory: Path, store: Store, facts_of: FactsOf | None = None) -> list[Entry]:
    """Return all paths, sorted, with all parents and the sha256 of every file. `directory` holds the spec and `blobs/`.

    `facts_of` returns the facts of a wheel that is neither in the store nor in the directory.

    Raises `ArtifactError` if a tree or the facts of a wheel are missing, `BuildError` if the spec contradicts itself.
    """
    identity = spec.identity
    layers: list[Sequence[Entry]] = [
        _tree(tree, directory, store) for tree in (identity.base, identity.unowned, identity.interpreter.tree) if tree is not None
    ]
    versions = {package.key: package.version for package in identity.packages}
    versions |= {wheel.key: wheel.version for wheel in identity.distributions}
    for kind, installed in (("conda", _packages(spec, store)), ("distributions", _wheels(spec, directory, store, facts_of))):
        groups = wheellayers.layers(installed)
        expected = [layer.holds for layer in spec.expected.layers if layer.kind == kind]
        if [tuple(f"{name}=={versions[name]}" for name in group.names) for group in groups] != expected:
            raise BuildError("the expected layers do not hold the artifacts of the identity", where="expected", hint=HINT)
        layers += [group.entries for group in groups]
    if identity.overlay is not None:
        layers.append(_tree(identity.overlay, directory, store))
    layers.append([entry for entry, _ in config.marker(identity)])
    return merge(layers)


def _packages(spec: Spec, store: Store) -> dict[str, rule.Installed]:
    installed = {}
    for package in spec.identity.packages:
        facts = recall_package(package, spec.identity.layout, store)
        if facts is None:
            raise ArtifactError("the facts of the package are not in the store", where=package.filename, hint=_REBUILD)
        installed[package.key] = linking.canonical(facts, spec.identity.layout)
    return installed


def _wheels(spec: Spec, directory: Path, store: Store, facts_of: FactsOf | None) -> dict[str, rule.Installed]:
    identity = spec.identity
    return {
        wheel.key: rule.canonical(_facts(wheel, directory, store, facts_of), identity.layout_of(wheel), name=wheel.name)
        for wheel in identity.distributions
    }


def _facts(wheel: Wheel, directory: Path, store: Store, facts_of: FactsOf | None) -> rule.Facts:
    """Return the facts of a wheel from the store, or from the wheel itself."""
    facts = recall_facts(wheel.filename, wheel.sha256, store.facts)
    if facts is not None:
        return facts
    path = store.blobs.path(wheel.sha256) or SpecBlobs(directory / "blobs").file(wheel.sha256, wheel.size, store.blobs)
    if path is None and facts_of is not None:
        return facts_of(wheel)
    if path is None:
        raise ArtifactError(
            "the facts of the wheel are not in the store, and the wheel is not there",
            where=f"{wheel.name}=={wheel.version}",
            hint=_REBUILD,
        )
    return open_facts(path, wheel.filename)


def _tree(blob: TreeBlob, directory: Path, store: Store) -> list[Entry]:
    bundled = SpecBlobs(directory / "blobs")
    unpacked = store.layers.path(blob.sha256)
    if bundled.path(blob.sha256) is None and unpacked is not None:
        walked = tuple(walk(unpacked))
        hashes = store.hashes.of(unpacked, walked)
        return [store_layers.entry(unpacked, found, hashes.get(found.path, "")) for found in walked]
    return bundled.entries(blob, store.facts)
