"""Runs one launch in a process of its own, as whoever it is started as: `driver.py PLAN`, PLAN a JSON file of `Plan`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from repro_env.model.errors import ReproEnvError
from repro_env.model.run import Launch, Lost, Outcome
from repro_env.run.embedded import EmbeddedRunner
from repro_env.run.outside import Bound
from repro_env.run.strategy import Strategy
from repro_env.run.workspace import harvest

HIDDEN = ("of-this-very-run",)
"""Values that no log may hold."""


class Plan(msgspec.Struct):
    store: str
    folder: str
    launch: Launch
    strategy: Strategy | None
    answer: str
    engine: str = ""
    """Address of the engine to run in; empty for the embedded runner."""
    bound: Bound = Bound()


class Answer(msgspec.Struct):
    outcome: Outcome | None = None
    removed: tuple[str, ...] = ()
    lost: Lost | None = None
    error: str = ""
    message: str = ""
    hint: str = ""


def run(plan: Plan, layer: Callable[[str], Path | None], store: Path, folder: Path) -> tuple[Outcome, Lost | None]:
    given: dict[str, Any] = {"merged": store / "merged", "interpreter": "/bin/python", "bound": plan.bound, "hidden": HIDDEN}
    if not plan.engine:
        runner = EmbeddedRunner(layer, strategy=plan.strategy, **given)
        return runner.run(plan.launch, folder=folder), runner.lost
    from repro_env.io import engine as engines
    from repro_env.run.docker import DockerRunner, suitable

    with engines.opened(plan.engine) as engine:
        suitable(engine, plan.launch.gpus)
        contained = DockerRunner(layer, engine=engine, **given)
        return contained.run(plan.launch, folder=folder), contained.lost


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    store = Path(plan.store)

    def layer(diff_id: str) -> Path | None:
        path = store / "layers" / diff_id.removeprefix("sha256:")
        return path if path.is_dir() else None

    folder = Path(plan.folder)
    try:
        outcome, lost = run(plan, layer, store, folder)
        removed = harvest(folder / "files", store / "layers" / plan.launch.snapshot.removeprefix("sha256:"))
        answer = Answer(outcome, removed, lost)
    except ReproEnvError as error:
        answer = Answer(error=type(error).__name__, message=str(error), hint=error.hint)
    Path(plan.answer).write_bytes(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
