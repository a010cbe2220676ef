"""The story of `repro-env diff`: in what do two environments differ, and how much can it matter?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.capture import target
from repro_env.flows import code, compare, images, sides
from repro_env.flows.operand import ImageOperand, LiveOperand, Operand, SpecOperand, operand
from repro_env.flows.sides import Side
from repro_env.model.talk import Tell
from repro_env.store.store import Store
from repro_env.verify import machine, source
from repro_env.verify.difference import Difference, ordered


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """One side, as it is told."""

    name: str
    kind: str
    spec_digest: str
    image_id: str
    layers: int
    distributions: int | None
    """None where only the image is known."""


class Diffed(msgspec.Struct, frozen=True, kw_only=True):
    left: Named
    right: Named
    differences: tuple[Difference, ...]
    """Ordered."""
    layers: int
    """Diff IDs that both have."""
    distributions: int
    """Distributions and conda packages that are the same on both sides."""

    @property
    def same(self) -> bool:
        return not any(one.counts for one in self.differences)


def diff(left: str, right: str, start: Path, environ: Mapping[str, str], *, store: Store, tell: Tell) -> Diffed:
    """Compare what two words mean. `start` is the caller's folder. Raises as `operand`, and what a capture raises."""
    first, second = operand(left, start, store), operand(right, start, store)
    if isinstance(first, ImageOperand) or isinstance(second, ImageOperand):
        pair = [_image(one, other, start, environ, store, tell) for one, other in ((first, second), (second, first))]
        return _of_images(*pair)
    one = _side(first, second, start, environ, store, tell)
    two = _side(second, first, start, environ, store, tell)
    found = list(compare.environments(one, two, store).differences)
    if isinstance(first, SpecOperand) and isinstance(second, SpecOperand):
        found += _specs(first, second)
    return Diffed(
        left=_named(one),
        right=_named(two),
        differences=ordered(found),
        layers=len({layer.diff_id for layer in one.layers} & {layer.diff_id for layer in two.layers}),
        distributions=len(_artifacts(one) & _artifacts(two)),
    )


def _specs(left: SpecOperand, right: SpecOperand) -> list[Difference]:
    """What only specs hold: code, data, hints."""
    found = list(machine.hints(left.spec.hints, right.spec.hints))
    found += source.data(left.spec.observed.data, right.spec.observed.data)
    old, new = code.captured(left.spec), code.captured(right.spec)
    if old is not None and new is not None:
        found += code.different(_called(old, left.name), _called(new, right.name))
    elif old is not None or new is not None:
        sides = ("" if one is None else f"{len(one.entries)} files" for one in (old, new))
        found.append(Difference(level="source", what="source", left=next(sides), right=next(sides)))
    was, now = left.spec.observed.source, right.spec.observed.source
    if was is not None and now is not None and was.path != now.path:
        why = "runs show the code there"
        found.append(Difference(level="source", what="folder", left=was.path, right=now.path, why=why, counts=False))
    return found


def _called(one: code.Code, name: str) -> code.Code:
    return msgspec.structs.replace(one, name=name)


def _side(one: Operand, other: Operand, start: Path, environ: Mapping[str, str], store: Store, tell: Tell) -> Side:
    """A live environment is looked at as the other side was captured: the same code folder, programs and seed."""
    if isinstance(one, SpecOperand):
        return sides.of_spec(one.spec, one.folder, one.name, store)
    spec = other.spec if isinstance(other, SpecOperand) else None
    code_of = spec.observed.source if spec is not None else None
    side = sides.of_live(
        target.choose(one.python if isinstance(one, LiveOperand) else None, environ, start.resolve()),
        environ,
        workspace=Path(code_of.path) if code_of is not None else start,
        programs=spec.observed.programs if spec is not None else (),
        seed=spec.identity.determinism.seed if spec is not None else 0,
        store=store,
        tell=tell,
        base=spec.hints.base if spec is not None else None,
        added=spec.observed.variables.added if spec is not None else (),
    )
    return msgspec.structs.replace(side, name=f"{one.name} ({side.name})" if one.name == "live" else one.name)


def _image(one: Operand, other: Operand, start: Path, environ: Mapping[str, str], store: Store, tell: Tell) -> images.Image:
    if isinstance(one, ImageOperand):
        return images.of_store(one.image_id, one.name, store)
    return images.of_side(_side(one, other, start, environ, store, tell), store)


def _of_images(left: images.Image, right: images.Image) -> Diffed:
    return Diffed(
        left=_shown(left),
        right=_shown(right),
        differences=ordered(images.different(left, right)),
        layers=len(set(left.layers) & set(right.layers)),
        distributions=0,
    )


def _shown(one: images.Image) -> Named:
    return Named(
        name=one.name,
        kind=one.kind,
        spec_digest=one.digest,
        image_id=one.image_id,
        layers=len(one.layers),
        distributions=None,
    )


def _named(side: Side) -> Named:
    return Named(
        name=side.name,
        kind=side.kind,
        spec_digest=side.digest,
        image_id=side.image_id,
        layers=len(side.layers),
        distributions=len(_artifacts(side)),
    )


def _artifacts(side: Side) -> set[tuple[str, str]]:
    wheels = {(one.key, one.sha256) for one in side.identity.distributions}
    return wheels | {(one.key, one.sha256) for one in side.identity.packages}
