"""Made-up runs of one script with many seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from repro_env.api.execute import FinishedRun
from repro_env.api.sensitivity import Found, over_seeds, parse_metric
from repro_env.schema.progress import Silent
from repro_env.schema.run import End, Metric, Outcome, Output, SourceFact, Start

ZERO = "sha256:" + "0" * 64


class Runs(Silent):
    """Return a record for each seed; `change` changes it for a test."""

    def __init__(self, change: Callable[[int, FinishedRun], FinishedRun] = lambda seed, done: done) -> None:
        self.seeds: list[int] = []
        self.lines: list[str] = []
        self.change = change

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)

    def progress(self, total: int, label: str, /) -> Any:
        raise AssertionError(total, label)

    def run(self, seed: int) -> FinishedRun:
        self.seeds.append(seed)
        return self.change(seed, done(seed))

    def over(self, count: int = 5, metric: str | None = None, first: int = 0, jobs: int = 1) -> Found:
        return over_seeds(first, count, parse_metric(metric), run=self.run, jobs=jobs, tell=self)


def metric(name: str, value: float, file: str = "metrics.json", least: float | None = None) -> Metric:
    return Metric(name=name, file=file, count=3, last=value, least=value if least is None else least, most=value)


def done(seed: int) -> FinishedRun:
    start = Start(
        schema="repro-env/run-start/1",
        id=f"00000000-0000-7000-8000-{seed:012d}",
        started="2026-07-01T00:00:00.000Z",
        spec=ZERO,
        image=ZERO,
        runner="embedded",
        command=("train.py",),
        cwd="/p",
        seed=seed,
        source=SourceFact(path="/p", digest=ZERO, directory="/p", differs=()),
        data=(),
        env_names=(),
        network=False,
        host=(),
    )
    end = End(
        schema="repro-env/run-end/1",
        id=start.id,
        ended=start.started,
        seconds=1.0,
        outcome=Outcome(exit_code=0, signal=0, out_of_memory=False, isolation="embedded", methods=()),
        outputs=(Output(path="metrics.json", sha256=f"sha256:{seed:064d}", size=9),),
        special_files=(),
        removed=(),
        auto_seeded=(),
        metrics=(metric("accuracy", 0.9 + seed / 100), metric("loss", 1.0 - seed / 10, least=0.1), metric("train_runtime", 3.0)),
    )
    return FinishedRun(Path("/p/runs/x"), start, end)
