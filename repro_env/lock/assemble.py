"""Facts and artifacts -> the spec. Pure: everything was read, hashed and proven before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repro_env.image import config
from repro_env.image.layout import SYSTEM_PATH
from repro_env.model.artifact import TreeBlob, Wheel
from repro_env.model.environment import Interpretation, Variable, Variables
from repro_env.model.image import Config, Expected, Layer
from repro_env.model.spec import (
    Determinism,
    Hints,
    Identity,
    Observed,
    Platform,
    Rules,
    Runtime,
    Spec,
    WheelHint,
)


class Trees(msgspec.Struct, frozen=True, kw_only=True):
    """The trees that travel as blobs."""

    base: TreeBlob
    interpreter: TreeBlob
    overlay: TreeBlob | None


def identity(
    facts: Interpretation,
    platform: Platform,
    trees: Trees,
    wheels: Sequence[Wheel],
    variables: Variables,
    *,
    python_path: str,
    seed: int,
) -> Identity:
    """What the spec digest is taken of."""
    return Identity(
        rules=Rules(),
        platform=platform,
        base=trees.base,
        interpreter=Runtime(tree=trees.interpreter, executable=facts.interpreter.executable, version=facts.interpreter.version),
        layout=facts.layout,
        command=facts.command,
        distributions=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
        overlay=trees.overlay,
        config=Config(env=_env(facts, variables, python_path)),
        determinism=Determinism(seed=seed),
    )


def _env(facts: Interpretation, variables: Variables, python_path: str) -> tuple[Variable, ...]:
    """The image's variables: the captured ones that change numbers, and what finds the environment's programs first."""
    layout = facts.layout
    values = {variable.name: variable.value for variable in variables.replayed}
    values["PATH"] = f"{layout.prefix}/{layout.scripts}:{SYSTEM_PATH}"
    values["VIRTUAL_ENV"] = layout.prefix
    if python_path:
        values["PYTHONPATH"] = python_path
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values))


def expected(found: Identity, distributions: Sequence[Layer]) -> Expected:
    """The layers of the image, lowest first, and its ID."""
    layers = [
        Layer(kind="base", diff_id=found.base.sha256, holds=()),
        Layer(kind="interpreter", diff_id=found.interpreter.tree.sha256, holds=()),
        *distributions,
    ]
    if found.overlay is not None:
        layers.append(Layer(kind="overlay", diff_id=found.overlay.sha256, holds=()))
    layers.append(config.marker_layer(found))
    return Expected(layers=tuple(layers), image_id=config.image_id(found, layers))


def spec(
    found: Identity,
    hints: Sequence[WheelHint],
    indexes: Sequence[str],
    observed: Observed,
    distributions: Sequence[Layer],
) -> Spec:
    """The four parts together."""
    return Spec(
        schema="repro-env/spec/1",
        identity=found,
        hints=Hints(wheels=tuple(sorted(hints, key=lambda hint: hint.sha256)), indexes=tuple(indexes)),
        observed=observed,
        expected=expected(found, distributions),
    )
