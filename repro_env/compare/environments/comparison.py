"""Compare two environments: list their differences, the most important first, and what could not be compared."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from repro_env.compare.environments import identity, machine, paths
from repro_env.compare.environments.difference import Difference, NotCompared, sort_differences
from repro_env.compare.environments.identity import LEVEL, Pair
from repro_env.compare.environments.sides import Side
from repro_env.schema.artifact import TreeBlob, Wheel
from repro_env.schema.errors import ArtifactError
from repro_env.schema.image import LABEL
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

_SAME_FILES = "another wheel with the same files"
_UNKNOWN = "the files that differ are unknown"


class Comparison(msgspec.Struct, frozen=True):
    differences: tuple[Difference, ...]
    """Ordered (`compare.environments.difference.sort_differences`)."""
    not_compared: tuple[NotCompared, ...] = ()

    @property
    def same(self) -> bool:
        """Whether everything was compared and no difference counts."""
        return not self.not_compared and not any(difference.counts for difference in self.differences)


def environments(left: Side, right: Side, store: Store) -> tuple[Difference, ...]:
    """Compare the identities of two environments and the recorded facts of their machines."""
    old, new = left.spec, right.spec
    is_base_different = any(pair.part == "base" for pair in identity.pairs(old.identity, new.identity))
    differences = (
        *files(left, right, store),
        *identity.settings(old.identity, new.identity),
        *machine.packages(old.observed.system_packages, new.observed.system_packages, counts=is_base_different),
        *machine.observations(old.observed, new.observed),
    )
    # Digests also cover the wheel files: they can differ although the installed files are the same.
    only_wheels_differ = any(difference.why == _SAME_FILES for difference in differences) and not any(
        difference.counts for difference in differences
    )
    return sort_differences((*differences, *_compare_digests(old, new, only_wheels_differ=only_wheels_differ)))


def files(left: Side, right: Side, store: Store) -> tuple[Difference, ...]:
    """Compare the files: artifacts and trees, but neither variables nor recorded facts. The result is sort_differences."""
    old, new = left.spec.identity, right.spec.identity
    differences = list(identity.artifacts(old, new))
    for was, now in identity.different_builds(old, new):
        differences += _compare_builds(was, now, left.spec, right.spec, store)
    for pair in identity.pairs(old, new):
        differences += _compare_trees(pair, left, right, store)
    return sort_differences(differences)


def _compare_trees(pair: Pair, left: Side, right: Side, store: Store) -> tuple[Difference, ...]:
    """Return the paths that differ in a tree, or one difference for the tree with the reason why its paths are unknown."""
    try:
        differences = paths.differences(pair.part, left, right, store)
    except ArtifactError as error:
        differences, moved, why = (), False, f"{_UNKNOWN}: {error}"
    else:  # the digests differ, so there must be a difference even if no path has one
        moved = left.spec.identity.layout.prefix != right.spec.identity.layout.prefix
        why = "the same files at another prefix" if moved else f"{_UNKNOWN}: all paths are equal"
    tree = Difference(LEVEL[pair.part], f"files of the {pair.part}", _short(pair.left), _short(pair.right), why, moved=moved)
    return differences or (tree,)


def _compare_builds(old: Wheel, new: Wheel, left: Spec, right: Spec, store: Store) -> list[Difference]:
    """Compare two builds of one version: list the files that differ if the store knows both wheels."""
    difference = identity.build_difference(old, new, right.identity)
    uncounted = msgspec.structs.replace(difference, level="distributions", why=_SAME_FILES, counts=False)
    requirement = f"{new.name}=={new.version}"  # a layer contains only the files that its wheels install
    layers = {layer.diff_id for layer in right.expected.layers}
    if any(layer.diff_id in layers for layer in left.expected.layers if requirement in layer.holds):
        return [uncounted]
    files = paths.build_differences(old, new, left.identity, right.identity, store)
    if files is None:
        why = f"{difference.why}; {_UNKNOWN}: the store does not know both wheels"
        return [msgspec.structs.replace(difference, why=why)]
    return [difference, *files] if files else [uncounted]


def _compare_digests(left: Spec, right: Spec, *, only_wheels_differ: bool) -> Iterator[Difference]:
    """Compare what depends on everything else: the spec digest and the image ID.

    `only_wheels_differ`: wheel files differ but their installed files do not; then the digests do not count.
    """
    if left.digest != right.digest:
        why = "covers the wheel files too" if only_wheels_differ else "covers all differences above that count"
        yield Difference("digests", "spec digest", left.digest, right.digest, why, counts=not only_wheels_differ)
    old, new = left.expected.image_id, right.expected.image_id
    if old != new:
        why = f"the image config contains the layers, the variables and {LABEL}"
        yield Difference("digests", "image ID", old, new, why, counts=not only_wheels_differ)


def _short(tree: TreeBlob | None) -> str:
    return "" if tree is None else tree.sha256.removeprefix("sha256:")[:12]
