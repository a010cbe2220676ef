"""Runs one launch in a process of its own, as whoever it is started as: `driver.py PLAN`, PLAN a JSON file of `Plan`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from repro_env.model.errors import ReproEnvError
from repro_env.model.run import Launch, Outcome
from repro_env.run.embedded import EmbeddedRunner
from repro_env.run.strategy import Strategy
from repro_env.run.workspace import harvest


class Plan(msgspec.Struct):
    store: str
    folder: str
    launch: Launch
    strategy: Strategy | None
    answer: str
    engine: str = ""
    """Address of the engine to run in; empty for the embedded runner."""


class Answer(msgspec.Struct):
    outcome: Outcome | None = None
    removed: tuple[str, ...] = ()
    error: str = ""
    message: str = ""
    hint: str = ""


def run(plan: Plan, layer: Callable[[str], Path | None], store: Path, folder: Path) -> Outcome:
    if not plan.engine:
        runner = EmbeddedRunner(layer, merged=store / "merged", interpreter="/bin/python", strategy=plan.strategy)
        return runner.run(plan.launch, folder=folder)
    from repro_env.io import engine as engines
    from repro_env.run.docker import DockerRunner, suitable

    with engines.opened(plan.engine) as engine:
        suitable(engine, plan.launch.gpus)
        return DockerRunner(layer, engine=engine, interpreter="/bin/python", merged=store / "merged").run(
            plan.launch, folder=folder
        )


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    store = Path(plan.store)

    def layer(diff_id: str) -> Path | None:
        path = store / "layers" / diff_id.removeprefix("sha256:")
        return path if path.is_dir() else None

    folder = Path(plan.folder)
    try:
        outcome = run(plan, layer, store, folder)
        removed = harvest(folder / "files", store / "layers" / plan.launch.snapshot.removeprefix("sha256:"))
        answer = Answer(outcome, removed)
    except ReproEnvError as error:
        answer = Answer(error=type(error).__name__, message=str(error), hint=error.hint)
    Path(plan.answer).write_bytes(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
