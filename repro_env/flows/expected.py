"""Every path that the image of a spec shows, without building it: what an image of another tool is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from repro_env.flows import paths, trees
from repro_env.image import config
from repro_env.image.entry import Entry, ordered
from repro_env.model.errors import ArtifactError
from repro_env.model.image import Layer
from repro_env.model.spec import Spec
from repro_env.store.store import Store
from repro_env.verify import environment
from repro_env.verify.difference import NotCompared

SPEC = "the spec"


def listing(spec: Spec, folder: Path, store: Store) -> Mapping[str, Entry] | NotCompared:
    """By path, folders included; or why it cannot be told. `folder` holds the spec and `blobs/`.

    What the wheels and packages become is known to the store that captured or rebuilt them.
    """
    shown: dict[str, Entry] = {}
    for layer in spec.expected.layers:
        try:
            found = _layer(layer, spec, folder, store)
        except ArtifactError as error:
            return NotCompared(what=SPEC, why=f"which files its {layer.kind} layer has: {error}")
        if isinstance(found, str):
            return NotCompared(what=SPEC, why=found)
        _lay(found, shown)
    return {entry.path: entry for entry in ordered(shown.values())}


def _lay(entries: Iterable[Entry], shown: dict[str, Entry]) -> None:
    for entry in entries:
        if entry.kind == "gone":
            shown.pop(entry.path, None)
            for below in [path for path in shown if path.startswith(entry.path + "/")]:
                del shown[below]
        elif entry.kind != "dir" or entry.path not in shown or shown[entry.path].kind != "dir":
            shown[entry.path] = entry


def _layer(layer: Layer, spec: Spec, folder: Path, store: Store) -> Iterable[Entry] | str:
    """The entries of one layer in order, or why they are not known."""
    identity = spec.identity
    if layer.kind == "marker":
        return [entry for entry, _ in config.marker(identity)]
    if layer.kind in ("base", "unowned", "interpreter", "overlay"):
        held = trees.captured(environment.tree(identity, layer.kind), folder, store)
        if held is None:
            return f"which files its {layer.kind} layer has: its blob is neither in blobs/ nor in the store; rebuild first"
        return held.entries().values()
    urls = {hint.sha256: hint.urls for hint in spec.hints.packages}
    entries: dict[str, Entry] = {}
    for package in identity.packages:
        if f"{package.key}=={package.version}" in layer.holds:
            known = paths.linked(package, identity, urls.get(package.sha256, ()), store)
            if known is None:
                return f"which files {package.name} {package.version} has: the store does not know the package; rebuild first"
            entries |= known
    for wheel in identity.distributions:
        if f"{wheel.key}=={wheel.version}" in layer.holds:
            known = paths.canonical(wheel, identity, store)
            if known is None:
                return f"which files {wheel.name} {wheel.version} has: the store does not know the wheel; rebuild first"
            entries |= known
    return ordered(entries.values())
