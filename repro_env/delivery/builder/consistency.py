"""Check that the expected layers of a spec follow from its identity: first without any wheel, then the groups of wheels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from repro_env.delivery.builder.locations import Artifact
from repro_env.io import machine
from repro_env.oci import config, group
from repro_env.schema.errors import BuildError, PlatformError
from repro_env.schema.image import LayerKind
from repro_env.schema.spec import Spec


def check_expected(spec: Spec) -> None:
    """Check everything in `expected` that follows from `identity` without any wheel. Raises `BuildError`."""
    identity, expected = spec.identity, spec.expected
    lower, upper = config.lower_layers(identity), config.upper_layers(identity)
    kinds = [layer.kind for layer in expected.layers]
    packages = [*["conda"] * kinds.count("conda"), *["distributions"] * kinds.count("distributions")]
    order = [*(layer.kind for layer in lower), *packages, *(layer.kind for layer in upper)]
    if kinds != order:
        raise _contradicts("the order of its layers", ", ".join(order), ", ".join(kinds))
    fixed_layers = [layer for layer in expected.layers if layer.kind not in ("conda", "distributions")]
    for layer, fixed in zip(fixed_layers, [*lower, *upper], strict=True):
        if layer.diff_id != fixed.diff_id or layer.holds:
            raise _contradicts(f"the {layer.kind} layer", layer.diff_id, fixed.diff_id)
    artifacts: list[Artifact] = [*identity.packages, *identity.distributions]
    if len({artifact.key for artifact in artifacts}) != len(artifacts):
        raise _contradicts("its distributions", "each key once", "one key twice")
    if any(name.startswith("conda/") != (layer.kind == "conda") for layer in expected.layers for name in layer.holds):
        raise _contradicts("the content of its layers", "packages and distributions in separate layers", "both in one layer")
    layer_labels = sorted(name for layer in expected.layers for name in layer.holds)
    labels = sorted(label(artifact) for artifact in artifacts)
    if layer_labels != labels or len({layer.diff_id for layer in expected.layers}) != len(expected.layers):
        raise _contradicts("the content of its layers", list_briefly(layer_labels), list_briefly(labels))
    image = config.image_id(identity, expected.layers)
    if image != expected.image_id:
        raise _contradicts("the image ID", expected.image_id, image)


def check_groups(spec: Spec, sizes: Mapping[str, int], complete_kinds: Collection[LayerKind]) -> None:
    """Check that the grouping rule makes the expected groups of these artifacts. Raises `BuildError`.

    `sizes`: installed size of each artifact in bytes, by key. `complete_kinds`: kinds with a layer that was fetched
    complete. They are not checked, because the facts of their wheels are unknown; the diff ID of the layer was proven.
    """
    kinds: tuple[tuple[LayerKind, Sequence[Artifact]], ...] = (
        ("conda", spec.identity.packages),
        ("distributions", spec.identity.distributions),
    )
    for kind, artifacts in kinds:
        if kind in complete_kinds:
            continue
        keys = {label(artifact): artifact.key for artifact in artifacts}
        expected = [tuple(keys[name] for name in layer.holds) for layer in spec.expected.layers if layer.kind == kind]
        groups = group.groups(group.Sized(artifact.key, sizes[artifact.key]) for artifact in artifacts if artifact.key in sizes)
        if groups != expected:
            first = next(
                (names for names, other in zip(expected, [*groups, *expected], strict=False) if names != other), expected[-1]
            )
            raise BuildError(
                f"the spec expects a layer of {list_briefly(first)}, and the grouping rule gives a different one",
                hint="the spec contradicts itself; capture again",
            )


def _contradicts(what: str, expected: str, got: str) -> BuildError:
    return BuildError(
        f"the spec contradicts itself in {what}: it expects {expected}, and its identity gives {got}",
        hint="the spec was edited or damaged; restore it or capture again",
    )


def label(artifact: Artifact) -> str:
    """Return the name of an artifact as the layers of a spec list it."""
    return f"{artifact.key}=={artifact.version}"


def list_briefly(names: Iterable[str]) -> str:
    """Return the first names as text, and how many more there are."""
    first = list(names)
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")


def check_platform(spec: Spec) -> None:
    """Raises `PlatformError` when this machine cannot run the image."""
    wanted, here = spec.identity.platform, machine.platform()
    if here != wanted:
        raise PlatformError(
            f"the spec is for {wanted.architecture}, and this is {here.architecture}",
            where="this machine",
            hint=f"rebuild on a machine that is {wanted.architecture}, or capture here",
        )
