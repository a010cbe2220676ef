"""Whether what a spec expects follows from its identity, as far as that shows without any wheel."""

from __future__ import annotations

from collections.abc import Iterable

from repro_env.build.sources import Artifact
from repro_env.image import config
from repro_env.model.errors import BuildError
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
