"""Run one launch in a separate process, as the user who starts it: `driver.py PLAN`, where PLAN is a JSON file of `Plan`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from repro_env.sandbox.embedded.runner import EmbeddedRunner
from repro_env.sandbox.image import Image
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.runners import runner_class
from repro_env.sandbox.workspace import collect
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Launch, Outcome
from repro_env.schema.runners import CHOICES, RunnerName

HIDDEN = ("of-this-very-run",)
"""Secret values that must not be in the logs."""


class Plan(msgspec.Struct):
    store: str
    directory: str
    launch: Launch
    overlay: bool
    answer: str
    engine: str = ""
    """The address of an engine, or the name of a program; empty for the embedded runner."""


class Answer(msgspec.Struct):
    outcome: Outcome | None = None
    removed: tuple[str, ...] = ()
    error: str = ""
    message: str = ""
    hint: str = ""


def run(plan: Plan, layer: Callable[[str], Path | None], store: Path, directory: Path) -> Outcome:
    image = Image(layer, merged=store / "merged", interpreter="/bin/python")
    runner: Runner = EmbeddedRunner(image, overlay=plan.overlay, hidden=HIDDEN)
    if plan.engine in CHOICES:
        runner = runner_class(msgspec.convert(plan.engine, RunnerName))(image, hidden=HIDDEN)
    elif plan.engine:
        from repro_env.io import engine as engines
        from repro_env.sandbox.docker.runner import DockerRunner, check_engine

        with engines.connect(plan.engine) as engine:
            check_engine(engine)
        runner = DockerRunner(image, address=plan.engine, hidden=HIDDEN)
    return runner.run(plan.launch, directory=directory)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    store = Path(plan.store)

    def layer(diff_id: str) -> Path | None:
        path = store / "layers" / diff_id.removeprefix("sha256:")
        return path if path.is_dir() else None

    directory = Path(plan.directory)
    try:
        outcome = run(plan, layer, store, directory)
        launch = plan.launch
        trees = [layer(diff_id) for diff_id in (launch.snapshot, *launch.layers)]
        snapshot, *image = [tree for tree in trees if tree is not None]
        answer = Answer(outcome, collect(directory, snapshot, image))
    except ReproEnvError as error:
        answer = Answer(error=type(error).__name__, message=str(error), hint=error.hint)
    Path(plan.answer).write_bytes(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
