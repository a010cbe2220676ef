"""The layers of a spec's image: what each is made of, and the check that they follow from the spec's identity."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from repro_env.io import machine
from repro_env.oci import config, wheellayers
from repro_env.schema.artifact import Artifact, TreeBlob
from repro_env.schema.errors import BuildError, PlatformError
from repro_env.schema.image import LayerKind
from repro_env.schema.messages import shorten
from repro_env.schema.spec import Spec

HINT = "the spec was edited or damaged; restore it or capture again"


class Task(msgspec.Struct, frozen=True):
    """One layer to make."""

    kind: LayerKind | None
    """None for the source, which is not a layer of the spec."""
    what: str
    """The name of its tree, or what the layer holds."""
    diff_id: str
    """For the source, the digest of its tree."""
    size: int
    """Approximate bytes to write. The largest layer is made first."""
    artifacts: tuple[Artifact, ...] = ()
    """The wheels or packages of the layer, sorted by key; empty for other layers."""
    tree: TreeBlob | None = None
    """The bundled tree that the layer consists of."""

    @property
    def label(self) -> str:
        """The name of the layer for messages."""
        return f"the layer of {self.what}" if self.artifacts else f"the {self.what}"


def named_trees(spec: Spec) -> dict[str, TreeBlob]:
    """Return the bundled trees by name, lowest layer first. The source comes last; it is not a layer."""
    return {"unpackaged libraries" if name == "unpackaged" else name: tree for name, tree in spec.trees.items()}


def tasks(spec: Spec) -> list[Task]:
    """Return a task for every layer, lowest first. Raises `BuildError` if the layers contradict the identity."""
    _check_expected(spec)
    by_label = {artifact.label: artifact for artifact in spec.identity.artifacts}
    trees = {tree.sha256: (what, tree) for what, tree in reversed(named_trees(spec).items())}
    made = []
    for layer in spec.expected.layers:
        if layer.kind == "marker":
            made.append(Task(layer.kind, "marker", layer.diff_id, 0))
        elif layer.diff_id in trees and not layer.holds:
            what, tree = trees[layer.diff_id]
            made.append(Task(layer.kind, what, layer.diff_id, tree.size, tree=tree))
        else:
            artifacts = tuple(sorted((by_label[name] for name in layer.holds), key=lambda artifact: artifact.key))
            size = sum(artifact.size for artifact in artifacts)
            made.append(Task(layer.kind, shorten(layer.holds), layer.diff_id, size, artifacts))
    return made


def _check_expected(spec: Spec) -> None:
    """Check everything in `expected` that follows from `identity` without any wheel. Raises `BuildError`."""
    identity, layers = spec.identity, spec.expected.layers
    conda, distributions = ([layer for layer in layers if layer.kind == kind] for kind in ("conda", "distributions"))
    derived = [*config.lower_layers(identity), *conda, *distributions, *config.upper_layers(identity)]
    if list(layers) != derived or len({layer.diff_id for layer in layers}) != len(layers):
        raise _contradicts("its layers are not those of its trees and packages, in their order")
    for group_layers, artifacts in ((conda, identity.packages), (distributions, identity.distributions)):
        held = sorted(name for layer in group_layers for name in layer.holds)
        names = sorted(artifact.label for artifact in artifacts)
        if held != names or len(set(names)) != len(names):
            raise _contradicts(f"its layers hold {shorten(held)}, and its identity has {shorten(names)}")
    image = config.image_id(identity, layers)
    if image != spec.expected.image_id:
        raise _contradicts(f"its image ID is {spec.expected.image_id}, and its identity and layers give {image}")


def check_groups(spec: Spec, sizes: Mapping[str, int], unchecked: Collection[LayerKind | None]) -> None:
    """Check that the grouping rule makes the expected groups of these artifacts. Raises `BuildError`.

    `sizes`: installed size of each artifact in bytes, by key. `unchecked`: kinds with a layer that was fetched complete: the
    facts of its wheels are unknown, and its diff ID was proven.
    """
    for kind, artifacts in (("conda", spec.identity.packages), ("distributions", spec.identity.distributions)):
        keys = {artifact.label: artifact.key for artifact in artifacts}
        expected = [tuple(keys[name] for name in layer.holds) for layer in spec.expected.layers if layer.kind == kind]
        if kind not in unchecked and expected != wheellayers.groups({key: sizes[key] for key in keys.values()}):
            raise _contradicts(f"the grouping rule gives other layers of {kind} than it expects")


def _contradicts(why: str) -> BuildError:
    return BuildError(f"the spec contradicts itself: {why}", where="expected", hint=HINT)


def check_platform(spec: Spec) -> None:
    """Raises `PlatformError` when this machine cannot run the image."""
    wanted, here = spec.identity.platform, machine.platform()
    if here != wanted:
        raise PlatformError(
            f"the spec is for {wanted.architecture}, and this is {here.architecture}",
            where="this machine",
            hint=f"rebuild on a machine that is {wanted.architecture}, or capture here",
        )
