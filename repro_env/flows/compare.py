"""Two sides -> all that differs between them, ordered by how much it can matter, and what could not be compared."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from repro_env.flows import paths
from repro_env.flows.sides import Side
from repro_env.image import config
from repro_env.model.artifact import TreeBlob, Wheel
from repro_env.model.errors import ArtifactError
from repro_env.model.image import Layer
from repro_env.store.store import Store
from repro_env.verify import environment, machine
from repro_env.verify.difference import Difference, NotCompared, ordered
from repro_env.verify.environment import LEVEL, Pair

_ALIKE = "another wheel file of the same files"
_UNTOLD = "which ones cannot be told"


class Compared(msgspec.Struct, frozen=True):
    differences: tuple[Difference, ...]
    """Ordered (`verify.difference.ordered`)."""
    missing: tuple[NotCompared, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing that counts differs, and all was compared."""
        return not self.missing and not any(one.counts for one in self.differences)


def environments(left: Side, right: Side, store: Store) -> Compared:
    """Compare what makes two environments these environments, and what was seen of their machines."""
    based = any(pair.part == "base" for pair in environment.pairs(left.identity, right.identity))
    found = (
        *files(left, right, store),
        *environment.settings(left.identity, right.identity),
        *machine.packages(left.observed.system_packages, right.observed.system_packages, counts=based),
        *machine.observations(left.observed, right.observed),
    )
    # Digests are taken of wheels too: they may differ although all that is installed is the same.
    alike = any(one.why == _ALIKE for one in found) and not any(one.counts for one in found)
    return Compared(ordered((*found, *_digests(left, right, alike=alike))))


def files(left: Side, right: Side, store: Store) -> tuple[Difference, ...]:
    """What of the artifacts and trees differs, ordered: all but variables, seed, and what was only seen."""
    found: list[Difference] = []
    found += environment.artifacts(left.identity, right.identity)
    for old, new in environment.rebuilt(left.identity, right.identity):
        found += _listed(old, new, left, right, store)
    for pair in environment.pairs(left.identity, right.identity):
        found += _paths(pair, left, right)
    return ordered(found)


def _paths(pair: Pair, left: Side, right: Side) -> tuple[Difference, ...]:
    """The paths of a tree that differ; the tree as a whole, and why, where they cannot be told."""
    sides = []
    for side in (left, right):
        held = side.tree(pair.part)
        if held is None:
            return (_whole(pair, f"{_UNTOLD}: the tree of {side.name} is neither beside the spec nor in the store"),)
        known = side.owners() if pair.part == "overlay" else paths.Owners({})
        sides.append(paths.Side(held, side.identity, known))
    try:
        found = paths.different(pair.part, *sides)
    except ArtifactError as error:
        return (_whole(pair, f"{_UNTOLD}: {error}"),)
    if found:
        return found
    # Trees that differ must not be passed over because no path of them is told.
    moved = left.identity.layout.prefix != right.identity.layout.prefix
    return (_whole(pair, "the same files, at another prefix" if moved else f"{_UNTOLD}: no path shows it", moved=moved),)


def _whole(pair: Pair, why: str, *, moved: bool = False) -> Difference:
    return Difference(
        level=LEVEL[pair.part],
        what=f"files of the {pair.part}",
        left=_short(pair.left),
        right=_short(pair.right),
        why=why,
        moved=moved,
    )


def _listed(old: Wheel, new: Wheel, left: Side, right: Side, store: Store) -> list[Difference]:
    """Another build of one version, with the files that differ where the store knows both."""
    one = environment.build(old, new, right.identity)
    alike = msgspec.structs.replace(one, level="distributions", why=_ALIKE, counts=False)
    held = f"{new.name}=={new.version}"  # a layer is made of the files that its wheels install, and of nothing else
    if {layer.diff_id for layer in left.layers if held in layer.holds} & {layer.diff_id for layer in right.layers}:
        return [alike]
    files = paths.builds(old, new, left.identity, right.identity, store)
    if files is None:
        why = f"{one.why}; which files cannot be told: the store does not know both wheels"
        return [msgspec.structs.replace(one, why=why)]
    if not files:
        return [alike]
    return [one, *files]


def _digests(left: Side, right: Side, *, alike: bool) -> Iterator[Difference]:
    """What follows from the rest: the layers that are others, and the digests over all of it.

    `alike`: only wheel files differ, and what is installed does not; then digests do not count.
    """
    old, new = {one.diff_id for one in left.layers}, {one.diff_id for one in right.layers}
    for kind in dict.fromkeys(one.kind for one in (*left.layers, *right.layers)):
        was = [one for one in left.layers if one.kind == kind and one.diff_id not in new]
        now = [one for one in right.layers if one.kind == kind and one.diff_id not in old]
        if was or now:
            why = "holds the spec digest, and the link at the prefix" if kind == "marker" else "holds what differs above"
            if kind == "conda" and left.identity.layout.prefix != right.identity.layout.prefix:
                why = "packages have their prefix written in them"
            name = f"{kind} layer{'s' if max(len(was), len(now)) > 1 else ''}"
            yield _follows(name, _ids(was), _ids(now), why, counts=not (alike and kind == "marker"))
    if left.digest != right.digest:
        why = "is taken of all that counts above" if not alike else "is taken of the wheel files too"
        yield _follows("spec digest", left.digest, right.digest, why, counts=not alike)
    if left.image_id != right.image_id:
        why = f"its config holds the layers, the variables and {config.LABEL}"
        yield _follows("image ID", left.image_id, right.image_id, why, counts=not alike)


def _follows(what: str, left: str, right: str, why: str, *, counts: bool) -> Difference:
    return Difference(level="digests", what=what, left=left, right=right, why=why, counts=counts)


def _ids(layers: list[Layer]) -> str:
    return ", ".join(one.diff_id.removeprefix("sha256:")[:12] for one in layers)


def _short(tree: TreeBlob | None) -> str:
    return "" if tree is None else tree.sha256.removeprefix("sha256:")[:12]
