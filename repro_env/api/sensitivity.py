"""The command `repro-env sensitivity`: run a command with several seeds, and measure how its metrics vary.

Each run has a record of its own. Only the seed may differ between the runs.
"""

from __future__ import annotations

import contextlib
import functools
import signal
from collections import Counter
from collections.abc import Callable, Generator, Sequence

from repro_env.api.execute import FinishedRun
from repro_env.compare import sensitivity
from repro_env.compare.sensitivity import Spread, Value
from repro_env.io.parallel import call_each
from repro_env.runs.records.reports import MORE_VALUES
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import DataError, RecordError, SourceError, UsageError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Tell
from repro_env.schema.run import Metric, Seeded

_FIELDS = {"last": "last", "min": "least", "max": "most"}
"""The values of a metric that `--metric` can select, with their fields of the record."""
_SEEDS = 2**32
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMES = 12
"""Most metrics that an error names."""


class MetricOption(Frozen, frozen=True, kw_only=True):
    """The value of `--metric`."""

    name: str
    """`NAME`, or `FILE:NAME` if several files have a metric of that name; empty for all metrics."""
    which: str = "last"


class Run(Frozen, frozen=True, kw_only=True):
    seed: int
    id: str
    exit_code: int
    equal: bool
    """Whether its outputs equal those of the first run, byte for byte."""


class Measured(Frozen, frozen=True, kw_only=True):
    metric: str
    """Name of the metric, with its file if several files have a metric of that name."""
    which: str
    spread: Spread | None
    """None if there are fewer than two numbers."""
    missing: tuple[int, ...]
    """Seeds whose runs ended without this metric."""


class Found(Frozen, frozen=True, kw_only=True):
    runs: tuple[Run, ...]
    """Oldest first."""
    requested: int
    """The value of `--seeds`."""
    metrics: tuple[Measured, ...]
    """Sorted by name; only the metric of `--metric`, if it is given."""
    seeded: tuple[Seeded, ...]
    """Seeds that the script sets itself, to the same value in all runs."""
    stopped: int
    """The signal with which the user ended the runs; 0 for none."""

    @property
    def no_effect(self) -> bool:
        """Whether all outputs of at least two runs are identical."""
        return len(self.runs) > 1 and all(run.equal and not run.exit_code for run in self.runs)

    @property
    def good(self) -> bool:
        """Whether every run succeeded, and all runs have some metric in common. Without an effect of the seed, two runs are enough."""
        complete = (len(self.runs) == self.requested or self.no_effect) and not any(run.exit_code for run in self.runs)
        return complete and any(metric.spread is not None and not metric.missing for metric in self.metrics)


def parse_metric(text: str | None) -> MetricOption:
    """Parse `NAME[:last|min|max]`. Raises `UsageError` if the name is empty."""
    if text is None:
        return MetricOption(name="")
    name, colon, which = text.rpartition(":")
    if not (colon and which in _FIELDS):
        name, which = text, "last"
    if not name:
        hint = "for example --metric accuracy, or --metric loss:min"
        raise UsageError("the name of the metric is empty", where=f"--metric {text!r}", hint=hint)
    return MetricOption(name=name, which=which)


def over_seeds(
    first: int, count: int, metric: MetricOption, *, run: Callable[[int], FinishedRun], jobs: int = 1, tell: Tell
) -> Found:
    """Run a command with the seeds `first`, `first` + 1, ... `run`: runs it with a seed.

    Stop after the first run if it fails, and after the second if its outputs equal those of the first; runs that were started get
    SIGTERM. `jobs`: how many runs are made at a time, each in its own process, after the first run; 0 if all of them were made before.

    Raises `UsageError` if the first run did not write the metric, or wrote it to several files, `RecordError` if it wrote no
    metrics, `SourceError` and `DataError` if the source or the data change between runs; and what `run` raises.
    """
    if count < 2:
        raise UsageError("this needs at least two seeds", where=f"--seeds {count}", hint="use 5 or more")
    if count < sensitivity.FEW:
        tell(f"{count} seeds are few: use at least {sensitivity.FEW} to see the range of a metric")
    finished: list[FinishedRun] = []
    stopped = 0
    with contextlib.closing(_runs(first, count, run, jobs, tell)) as results:
        for done in results:
            finished.append(done)
            start = finished[0].start
            if done.start.source.trees != start.source.trees:
                raise SourceError(
                    "the source changed between two runs",
                    where=start.source.directory or start.source.path,
                    hint="do not change it until all runs have ended, or use --frozen",
                )
            if done.start.data != start.data:
                what = "the data changed between two runs"
                raise DataError(what, where="--data", hint="do not change them until all runs have ended")
            outcome = done.end.outcome
            if not outcome.timed_out and (stop := outcome.signal or outcome.interrupted) in _STOPS:
                stopped = stop
                break
            if len(finished) == 1:
                if outcome.status:
                    tell("the first run failed, so the others are skipped")
                    break
                _choose(_labels(done.end.metrics), metric)
            elif len(finished) == 2 and done.end.outputs and done.end.outputs == finished[0].end.outputs:
                tell("its outputs equal those of the first run, byte for byte" + own_seeds(done.end.seeded))
                if jobs:
                    break
    good = [done for done in finished if not done.end.outcome.status]
    return Found(
        runs=tuple(
            Run(
                seed=done.start.seed,
                id=done.end.id,
                exit_code=done.end.outcome.status,
                equal=done.end.outputs == finished[0].end.outputs,
            )
            for done in finished
        ),
        requested=count,
        metrics=_measure([(done.start.seed, _labels(done.end.metrics)) for done in good], metric),
        seeded=_in_all([done.end.seeded for done in good]),
        stopped=stopped,
    )


def _runs(first: int, count: int, run: Callable[[int], FinishedRun], jobs: int, tell: Tell) -> Generator[FinishedRun, None, None]:
    """Run the command with each seed."""

    def run_one(number: int) -> FinishedRun:
        seed = (first + number) % _SEEDS
        tell(f"seed {seed}, run {number + 1} of {count}")
        return run(seed)

    alone = count if jobs <= 1 else 1
    yield from map(run_one, range(alone))
    if alone < count:
        yield from call_each([functools.partial(run_one, number) for number in range(alone, count)], jobs)


def _in_all(seeded: Sequence[Sequence[Seeded]]) -> tuple[Seeded, ...]:
    """Return the seeds that every run sets to the same value. A seed that is derived from the master seed is not among them."""
    first, *others = seeded or ((),)
    return tuple(seed for seed in first if seed.value != MORE_VALUES and all(seed in other for other in others))


def own_seeds(seeded: Sequence[Seeded]) -> str:
    """Return the end of a sentence that says where the script sets seeds itself; empty if it sets none."""
    if not seeded:
        return ""
    own_first = sorted(seeded, key=lambda seed: "-packages/" in seed.file)
    places = [f"{seed.what}({seed.value}) at {seed.file}:{seed.line}" for seed in own_first]
    return f": the script sets seeds itself, {shorten(places, 1)}"


def _measure(runs: Sequence[tuple[int, dict[str, Metric]]], metric: MetricOption) -> tuple[Measured, ...]:
    """Return the numbers of all seeds, by metric. The first run decides from which file the metric of `--metric` is read."""
    labels = _choose(runs[0][1], metric) if runs and metric.name else {label for _, metrics in runs for label in metrics}
    return tuple(
        Measured(
            metric=label,
            which=metric.which,
            spread=sensitivity.spread(
                [Value(seed=seed, value=_number(metrics[label], metric)) for seed, metrics in runs if label in metrics]
            ),
            missing=tuple(seed for seed, metrics in runs if label not in metrics),
        )
        for label in sorted(labels)
    )


def _labels(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """Return the metrics by their name, or by `FILE:NAME` if several files have a metric of that name.

    So the file may have another path in each run, as event files of TensorBoard have, if the name is unique.
    """
    counts = Counter(metric.name for metric in metrics)
    return {metric.name if counts[metric.name] == 1 else f"{metric.file}:{metric.name}": metric for metric in metrics}


def _choose(metrics: dict[str, Metric], metric: MetricOption) -> set[str]:
    """Return the label of the metric of `--metric` in the first run: one of them if several files have the same number.

    Raises as `over_seeds` says, also if `--metric` names none.
    """
    if not metrics:
        raise RecordError(
            "the first run wrote no metrics",
            where="repro-env sensitivity",
            hint='write them in the script, such as {"accuracy": 0.9} to metrics.json; CSV and TensorBoard files are read too',
        )
    found = {
        label: _number(recorded, metric)
        for label, recorded in metrics.items()
        if metric.name in (recorded.name, f"{recorded.file}:{recorded.name}")
    }
    if metric.name and len(set(found.values())) != 1:
        what = "the first run did not write this metric"
        if found:
            what = f"this metric is in {len(found)} files, with different values"
        names = sorted(found or {recorded.name for recorded in metrics.values()})
        raise UsageError(what, where=f"--metric {metric.name}", hint=f"choose from {shorten(names, _NAMES)}")
    return set(list(found)[:1])


def _number(recorded: Metric, metric: MetricOption) -> float:
    return float(getattr(recorded, _FIELDS[metric.which]))
