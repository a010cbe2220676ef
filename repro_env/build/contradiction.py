"""Whether what a spec expects follows from its identity: at once as far as that shows without any wheel, then its groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from repro_env.build.sources import Artifact
from repro_env.image import config, group
from repro_env.model.errors import BuildError
from repro_env.model.image import LayerKind
from repro_env.model.spec import Spec


def contradiction(spec: Spec) -> None:
    """Check that `expected` follows from `identity` as far as that shows without any wheel. Raises `BuildError`."""
    identity, expected = spec.identity, spec.expected
    lower, upper = config.lower_layers(identity), config.upper_layers(identity)
    kinds = [one.kind for one in expected.layers]
    packages = [*["conda"] * kinds.count("conda"), *["distributions"] * kinds.count("distributions")]
    order = [*(one.kind for one in lower), *packages, *(one.kind for one in upper)]
    if kinds != order:
        raise _contradicts("the order of its layers", ", ".join(order), ", ".join(kinds))
    others = [one for one in expected.layers if one.kind not in ("conda", "distributions")]
    for one, fixed in zip(others, [*lower, *upper], strict=True):
        if one.diff_id != fixed.diff_id or one.holds:
            raise _contradicts(f"the {one.kind} layer", one.diff_id, fixed.diff_id)
    artifacts: list[Artifact] = [*identity.packages, *identity.distributions]
    if len({one.key for one in artifacts}) != len(artifacts):
        raise _contradicts("its distributions", "each once", "one twice")
    if any(held.startswith("conda/") != (one.kind == "conda") for one in expected.layers for held in one.holds):
        raise _contradicts("what its layers hold", "packages and distributions apart", "both in one")
    held = sorted(name for one in expected.layers for name in one.holds)
    wanted = sorted(label(one) for one in artifacts)
    if held != wanted or len({one.diff_id for one in expected.layers}) != len(expected.layers):
        raise _contradicts("what its layers hold", several(held), several(wanted))
    image = config.image_id(identity, expected.layers)
    if image != expected.image_id:
        raise _contradicts("the image ID", expected.image_id, image)


def check_groups(spec: Spec, sizes: Mapping[str, int], whole: Collection[LayerKind]) -> None:
    """The expected groups are those that the grouping rule makes of these artifacts. Raises `BuildError`.

    `sizes`: bytes that each artifact becomes, by key. `whole`: kinds of which a layer came as it was sent; they are left
    out, since nothing is known of wheels that nobody has. The diff ID of such a layer was proven all the same.
    """
    kinds: tuple[tuple[LayerKind, Sequence[Artifact]], ...] = (
        ("conda", spec.identity.packages),
        ("distributions", spec.identity.distributions),
    )
    for kind, artifacts in kinds:
        if kind in whole:
            continue
        keys = {label(one): one.key for one in artifacts}
        expected = [tuple(keys[held] for held in one.holds) for one in spec.expected.layers if one.kind == kind]
        found = group.groups(group.Sized(one.key, sizes[one.key]) for one in artifacts if one.key in sizes)
        if found != expected:
            first = next(
                (names for names, other in zip(expected, [*found, *expected], strict=False) if names != other), expected[-1]
            )
            raise BuildError(
                f"the spec expects a layer of {several(first)}, and the grouping rule makes another of these artifacts",
                hint="the spec contradicts itself; capture again",
            )


def _contradicts(what: str, expected: str, got: str) -> BuildError:
    return BuildError(
        f"the spec contradicts itself in {what}: expected {expected}, and its identity gives {got}",
        hint="it was edited or damaged; restore it or capture again",
    )


def label(one: Artifact) -> str:
    """As a layer of a spec names what it holds."""
    return f"{one.key}=={one.version}"


def several(names: Iterable[str]) -> str:
    """The first of many, for people."""
    first = list(names)
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")
