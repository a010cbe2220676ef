"""The command `repro-env diff`: list the differences of two environments, the most important first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.compare.environments import code, comparison, sides
from repro_env.compare.environments.difference import Difference, NotCompared, sort_differences
from repro_env.compare.environments.sides import LiveOperand, Side, parse_operand
from repro_env.environment.python import selection
from repro_env.schema.environment import Environ
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.argument import current_directory
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


def diff(
    left: str,
    right: str,
    *,
    start: Path | None = None,
    environ: Mapping[str, str] | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> DiffResult:
    """Compare two environments, each named as for `repro-env diff`: a spec, a Python, or "live".

    `start`: the directory that relative paths start from, by default the current directory. Raises as `parse_operand`, and what
    a capture raises.
    """
    start, store = start or current_directory(), store or Store.open()
    environ = Environ(os.environ if environ is None else environ)
    operands = parse_operand(left, start, store), parse_operand(right, start, store)
    specs = [operand.spec for operand in operands if isinstance(operand, Side)]
    like = next(iter(specs), None)
    first, second = (
        operand if isinstance(operand, Side) else _inspect(operand, like, start, environ, store, tell) for operand in operands
    )
    differences = list(comparison.environments(first, second, store))
    if len(specs) == 2:
        differences += _compare_specs(*specs)
    old, new = first.spec.expected.layers, second.spec.expected.layers
    return DiffResult(
        left=_summarize(first),
        right=_summarize(second),
        differences=sort_differences(differences),
        not_compared=_not_compared(specs[0]) if len(specs) == 1 else (),
        same_layers=len({layer.diff_id for layer in old} & {layer.diff_id for layer in new}),
        same_distributions=len(_artifacts(first) & _artifacts(second)),
    )


def _compare_specs(left: Spec, right: Spec) -> list[Difference]:
    """Compare the parts that only specs have: defaults of runs, code and data."""
    differences: list[Difference] = []
    if (old_seed := left.defaults.seed) != (new_seed := right.defaults.seed):
        why = "default of runs; the image is the same for every seed"
        differences.append(Difference("numerics", "seed", str(old_seed), str(new_seed), why))
    differences += code.differences_of_data(left.observed.data, right.observed.data)
    old, new = left.observed.source, right.observed.source
    if old is not None and new is not None:
        differences += code.compare(code.captured_code(old), code.captured_code(new))
        if old.path != new.path:
            differences.append(
                Difference("source", "directory", old.path, new.path, "runs use this path for the code", counts=False)
            )
    elif old is not None or new is not None:
        was, now = ("" if source is None else f"{len(source.files)} files" for source in (old, new))
        differences.append(Difference("source", "source", was, now))
    return differences


def _not_compared(spec: Spec) -> tuple[NotCompared, ...]:
    """Return what a live environment does not have."""
    why = "a live environment has none; compare it with the capture: repro-env check"
    source, data = spec.observed.source, spec.observed.data
    names = [*(["source"] if source is not None else []), *(f"data {item.path}" for item in data)]
    return tuple(NotCompared(what=name, why=why) for name in names)


def _inspect(operand: LiveOperand, like: Spec | None, start: Path, environ: Mapping[str, str], store: Store, tell: Tell) -> Side:
    """Inspect a live environment like the capture of the other side: with the same source and programs."""
    source = like.observed.source if like is not None else None
    target = selection.choose(operand.python, environ, start.resolve())
    workspace = Path(source.path) if source is not None else start
    side = sides.live_side(target, environ, workspace, store, tell, like=like)
    return msgspec.structs.replace(side, name=f"{operand.name} ({side.name})" if operand.name == "live" else operand.name)


def _summarize(side: Side) -> SideSummary:
    return SideSummary(
        name=side.name,
        kind=side.kind,
        spec_digest=side.spec.digest,
        image_id=side.spec.expected.image_id,
        layers=len(side.spec.expected.layers),
        distributions=len(_artifacts(side)),
    )


def _artifacts(side: Side) -> set[tuple[str, str]]:
    wheels = {(wheel.key, wheel.sha256) for wheel in side.spec.identity.distributions}
    return wheels | {(package.key, package.sha256) for package in side.spec.identity.packages}
