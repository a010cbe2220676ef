"""The command `repro-env diff`: list the differences of two environments, the most important first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.compare.environments import code, comparison, sides
from repro_env.compare.environments.difference import Difference, NotCompared, sort_differences
from repro_env.compare.environments.sides import Operand, Side, SpecOperand, parse_operand
from repro_env.environment.live import Request
from repro_env.environment.python import selection
from repro_env.schema.progress import Tell
from repro_env.store.store import Store


class SideSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the output says about one side."""

    name: str
    kind: str
    spec_digest: str
    image_id: str
    layers: int
    distributions: int


class DiffResult(msgspec.Struct, frozen=True, kw_only=True):
    left: SideSummary
    right: SideSummary
    differences: tuple[Difference, ...]
    """Ordered."""
    not_compared: tuple[NotCompared, ...]
    """Code and data of a spec whose other side is a live environment, which has neither."""
    same_layers: int
    """The number of diff IDs that both sides have."""
    same_distributions: int
    """The number of distributions and conda packages that are equal on both sides."""

    @property
    def same(self) -> bool:
        """Whether everything was compared and no difference counts."""
        return not self.not_compared and not any(difference.counts for difference in self.differences)


def diff(left: str, right: str, start: Path, environ: Mapping[str, str], *, store: Store, tell: Tell) -> DiffResult:
    """Compare two operands. `start` is the caller's working directory. Raises as `operand`, and what a capture raises."""
    first, second = parse_operand(left, start, store), parse_operand(right, start, store)
    left_side = _open_side(first, second, start, environ, store, tell)
    right_side = _open_side(second, first, start, environ, store, tell)
    differences = list(comparison.environments(left_side, right_side, store).differences)
    missing: list[NotCompared] = []
    if isinstance(first, SpecOperand) and isinstance(second, SpecOperand):
        differences += _compare_specs(first, second)
    else:
        missing = [entry for side in (first, second) if isinstance(side, SpecOperand) for entry in _not_compared(side)]
    return DiffResult(
        left=_summarize(left_side),
        right=_summarize(right_side),
        differences=sort_differences(differences),
        not_compared=tuple(missing),
        same_layers=len({layer.diff_id for layer in left_side.layers} & {layer.diff_id for layer in right_side.layers}),
        same_distributions=len(_artifacts(left_side) & _artifacts(right_side)),
    )


def _compare_specs(left: SpecOperand, right: SpecOperand) -> list[Difference]:
    """Compare the parts that only specs have: defaults of runs, code and data."""
    differences: list[Difference] = []
    if (old_seed := left.spec.defaults.seed) != (new_seed := right.spec.defaults.seed):
        why = "default of runs; the image is the same for every seed"
        differences.append(Difference(level="numerics", what="seed", left=str(old_seed), right=str(new_seed), why=why))
    differences += code.differences_of_data(left.spec.observed.data, right.spec.observed.data)
    old, new = code.captured_code(left.spec), code.captured_code(right.spec)
    if old is not None and new is not None:
        differences += code.compare(old, new)
    elif old is not None or new is not None:
        sides = ("" if side is None else f"{len(side.entries)} files" for side in (old, new))
        differences.append(Difference(level="source", what="source", left=next(sides), right=next(sides)))
    paths = [side.spec.observed.source.path for side in (left, right) if side.spec.observed.source is not None]
    if len(paths) == 2 and paths[0] != paths[1]:
        why = "runs use this path for the code"
        differences.append(Difference(level="source", what="directory", left=paths[0], right=paths[1], why=why, counts=False))
    return differences


def _not_compared(side: SpecOperand) -> list[NotCompared]:
    """Return what a live environment does not have."""
    why = "a live environment has none; compare it with the capture: repro-env check"
    source, data = side.spec.observed.source, side.spec.observed.data
    names = [*(["source"] if source is not None else []), *(f"data {item.path}" for item in data)]
    return [NotCompared(what=name, why=why) for name in names]


def _open_side(operand: Operand, other: Operand, start: Path, environ: Mapping[str, str], store: Store, tell: Tell) -> Side:
    """Open one side. A live environment is inspected like the capture of the other side: with the same source and programs."""
    if isinstance(operand, SpecOperand):
        return sides.spec_side(operand.spec, operand.directory, operand.name, store)
    spec = other.spec if isinstance(other, SpecOperand) else None
    captured_source = spec.observed.source if spec is not None else None
    request = Request(
        target=selection.choose(operand.python, environ, start.resolve()),
        environ=environ,
        workspace=Path(captured_source.path) if captured_source is not None else start,
        store=store,
        programs=spec.observed.programs if spec is not None else (),
        added=spec.observed.variables.added if spec is not None else (),
    )
    side = sides.live_side(request, tell)
    return msgspec.structs.replace(side, name=f"{operand.name} ({side.name})" if operand.name == "live" else operand.name)


def _summarize(side: Side) -> SideSummary:
    return SideSummary(
        name=side.name,
        kind=side.kind,
        spec_digest=side.digest,
        image_id=side.image_id,
        layers=len(side.layers),
        distributions=len(_artifacts(side)),
    )


def _artifacts(side: Side) -> set[tuple[str, str]]:
    wheels = {(wheel.key, wheel.sha256) for wheel in side.identity.distributions}
    return wheels | {(package.key, package.sha256) for package in side.identity.packages}
