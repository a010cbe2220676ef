"""Facts and artifacts -> the spec. Pure: everything was read, hashed and proven before."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repro_env.image import config
from repro_env.image.layout import SYSTEM_PATH
from repro_env.model.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.model.environment import Interpretation, Layout, Variable, Variables
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
    unowned: TreeBlob | None
    interpreter: TreeBlob | None
    overlay: TreeBlob | None


def identity(
    facts: Interpretation,
    platform: Platform,
    trees: Trees,
    packages: Sequence[CondaPackage],
    wheels: Sequence[Wheel],
    variables: Variables,
    *,
    activation: Sequence[Variable],
    others: Sequence[Layout],
    python_path: str,
    user_base: str,
    seed: int,
) -> Identity:
    """What the spec digest is taken of."""
    return Identity(
        rules=Rules(),
        platform=platform,
        base=trees.base,
        unowned=trees.unowned,
        interpreter=Runtime(tree=trees.interpreter, executable=facts.interpreter.executable, version=facts.interpreter.version),
        layout=facts.layout,
        others=tuple(others),
        command=facts.command,
        packages=tuple(sorted(packages, key=lambda package: package.name)),
        distributions=tuple(sorted(wheels, key=lambda wheel: wheel.key)),
        overlay=trees.overlay,
        config=Config(env=_env(facts, [*variables.replayed, *activation], others, python_path, user_base)),
        determinism=Determinism(seed=seed),
    )


def _env(
    facts: Interpretation, held: Sequence[Variable], others: Sequence[Layout], python_path: str, user_base: str
) -> tuple[Variable, ...]:
    """The image's variables: the captured ones that change numbers, and what finds the environment's programs first."""
    values = {variable.name: variable.value for variable in held}
    own = facts.command.rpartition("/")[0]
    folders = [] if facts.kind == "venv" or own in SYSTEM_PATH.split(":") else [own]
    folders += [f"{layout.prefix}/{layout.scripts}" for layout in (facts.layout, *others)]
    values["PATH"] = ":".join(dict.fromkeys([*folders, *SYSTEM_PATH.split(":")]))
    if facts.kind == "venv":
        values["VIRTUAL_ENV"] = facts.layout.prefix
    if python_path:
        values["PYTHONPATH"] = python_path
    if user_base:
        values["PYTHONUSERBASE"] = user_base  # HOME is that of whoever runs it
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values))


def expected(found: Identity, distributions: Sequence[Layer]) -> Expected:
    """The layers of the image, lowest first, and its ID. `distributions`: those of conda packages and wheels."""
    layers = [*config.lower_layers(found), *distributions, *config.upper_layers(found)]
    return Expected(layers=tuple(layers), image_id=config.image_id(found, layers))


def spec(
    found: Identity,
    hints: Sequence[WheelHint],
    packages: Sequence[WheelHint],
    indexes: Sequence[str],
    observed: Observed,
    distributions: Sequence[Layer],
) -> Spec:
    """The four parts together."""
    return Spec(
        schema="repro-env/spec/1",
        identity=found,
        hints=Hints(
            wheels=tuple(sorted(hints, key=lambda hint: hint.sha256)),
            packages=tuple(sorted(packages, key=lambda hint: hint.sha256)),
            indexes=tuple(indexes),
        ),
        observed=observed,
        expected=expected(found, distributions),
    )
