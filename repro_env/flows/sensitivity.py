"""The story of `repro-env sensitivity`: one command, run once for each of several seeds, and what its numbers do.

Each is a run like any other, with a record of its own. Nothing but the seed may differ between them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from repro_env.catalog.noted import OTHERS
from repro_env.flows.asked import Asked
from repro_env.flows.execute import Done
from repro_env.model.codec import Frozen
from repro_env.model.errors import DataError, RecordError, SourceError, UsageError
from repro_env.model.run import End, Metric, Seeded
from repro_env.model.talk import Tell
from repro_env.verify import sensitivity
from repro_env.verify.sensitivity import Spread, Value

Which = Literal["last", "min", "max"]
_SEEDS = 2**32
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMES = 12
"""Metrics that an error names."""


class Wanted(Frozen, frozen=True, kw_only=True):
    """Of a metric, as the user asked for it."""

    name: str
    """`NAME`, or `FILE:NAME` where several files have one of that name; empty: all of them."""
    which: Which = "last"


class Run(Frozen, frozen=True, kw_only=True):
    seed: int
    id: str
    exit_code: int
    equal: bool
    """Its outputs are those of the first run, byte for byte."""


class Measured(Frozen, frozen=True, kw_only=True):
    metric: str
    """Its name, with its file where several have one of that name."""
    which: Which
    spread: Spread | None
    """None with fewer than two numbers."""
    missing: tuple[int, ...]
    """Seeds whose run is over and did not write it."""


class Found(Frozen, frozen=True, kw_only=True):
    runs: tuple[Run, ...]
    """In order of time."""
    asked: int
    """How many were asked for."""
    metrics: tuple[Measured, ...]
    """Sorted by name; only the wanted one, where one was asked for."""
    seeded: tuple[Seeded, ...]
    """Seeds that the script sets itself: these are the same in all runs."""
    stopped: int
    """The signal that ended it; 0 for none."""

    @property
    def good(self) -> bool:
        """Every run came to its end, and there is a metric that all of them have."""
        whole = len(self.runs) == self.asked and not any(one.exit_code for one in self.runs)
        return whole and any(one.spread is not None and not one.missing for one in self.metrics)


def wanted(text: str | None) -> Wanted:
    """`NAME[:last|min|max]`. Raises `UsageError` for an empty name."""
    if text is None:
        return Wanted(name="")
    name, colon, last = text.rpartition(":")
    which: Which | None = "last" if last == "last" else "min" if last == "min" else "max" if last == "max" else None
    found = Wanted(name=name, which=which) if colon and which else Wanted(name=text)
    if not found.name:
        raise UsageError("is no name of a metric", where=f"--metric {text!r}", hint="such as --metric accuracy, or loss:min")
    return found


def over_seeds(asked: Asked, first: int, count: int, metric: Wanted, *, run: Callable[[Asked], Done], tell: Tell) -> Found:
    """Run it with the seeds `first`, `first` + 1, ... Stops where the first run shows that the others would be for nothing.

    Raises `UsageError` for a metric that the first run did not write or that is not one, `RecordError` where it wrote
    none at all, `SourceError` and `DataError` where the source or the data changed on the way; what `run` raises.
    """
    if count < 2:
        raise UsageError("one seed has no range", where=f"--seeds {count}", hint="give 5 or more")
    if asked.checkpoints:
        raise UsageError(
            "each run would go on from what the one before left there",
            where=f"--checkpoints {asked.checkpoints[0][0]}",
            hint="leave it out: what the script writes is kept with each run; --data shows weights to start from",
        )
    if count < sensitivity.FEW:
        tell(f"{count} seeds are few: the interval of fewer than {sensitivity.FEW} says little")
    runs: list[Run] = []
    ends: list[tuple[int, End]] = []
    stopped = 0
    start = None
    for place in range(count):
        seed = (first + place) % _SEEDS
        tell(f"seed {seed}, run {place + 1} of {count}")
        done = run(msgspec.structs.replace(asked, seed=seed))
        start = start or done.start
        if done.start.source.trees != start.source.trees:
            raise SourceError(
                "changed between two runs",
                where=start.source.directory or start.source.path,
                hint="leave it alone meanwhile, or say --frozen",
            )
        if done.start.data != start.data:
            raise DataError("changed between two runs", where="--data", hint="leave them alone meanwhile")
        outcome = done.end.outcome
        equal = not ends or done.end.outputs == ends[0][1].outputs
        runs.append(Run(seed=seed, id=done.end.id, exit_code=outcome.exit_code, equal=equal))
        if outcome.signal in _STOPS:
            stopped = outcome.signal
            break
        ends.append((seed, done.end))
        if place == 0:
            if outcome.exit_code:
                tell("the first run failed: the others are left out")
                break
            check(done.end.metrics, metric)
        elif place == 1 and equal and done.end.outputs:
            tell("its outputs are those of the first run, byte for byte" + own_seeds(done.end.seeded))
    return Found(
        runs=tuple(runs),
        asked=count,
        metrics=measured([(seed, end) for seed, end in ends if not end.outcome.exit_code], metric),
        seeded=_in_all([end.seeded for _, end in ends]),
        stopped=stopped,
    )


def _in_all(seeded: Sequence[Sequence[Seeded]]) -> tuple[Seeded, ...]:
    """What every run set alike. A library's seed may itself be drawn from the master seed: that one moves."""
    first, *others = seeded or ((),)
    return tuple(one for one in first if one.value != OTHERS and all(one in other for other in others))


def own_seeds(seeded: Sequence[Seeded]) -> str:
    """The end of a sentence: why a master seed does not reach everything. Empty where there is no reason."""
    if not seeded:
        return ""
    first = min(seeded, key=lambda one: "-packages/" in one.file)
    more = f" and {len(seeded) - 1} more" if len(seeded) > 1 else ""
    return f": the script sets seeds itself, {first.what}({first.value}) at {first.file}:{first.line}{more}"


def measured(ends: Sequence[tuple[int, End]], metric: Wanted) -> tuple[Measured, ...]:
    """The numbers of all seeds, by metric. A wanted one is taken from the file where the first run has it."""
    values: dict[str, dict[int, float]] = {}
    names: dict[str, str] = {}
    first = ends[0][1].metrics if ends else ()
    chosen = set(_chosen(_labels(first, first), metric))
    for seed, end in ends:
        for label, one in _labels(end.metrics, first).items():
            if label in chosen or not metric.name:
                values.setdefault(label, {})[seed] = _number(one, metric.which)
                names[label] = one.name
    plain = {label for label, name in names.items() if list(names.values()).count(name) == 1}
    return tuple(
        Measured(
            metric=names[label] if label in plain else label,
            which=metric.which,
            spread=sensitivity.spread([Value(seed=seed, value=value) for seed, value in values[label].items()]),
            missing=tuple(seed for seed, _ in ends if seed not in values[label]),
        )
        for label in sorted(values, key=lambda label: (names[label], label))
    )


def check(metrics: Sequence[Metric], metric: Wanted) -> None:
    """Of the first run: raises as `over_seeds` says."""
    there = _labels(metrics, metrics)
    found = _chosen(there, metric)
    if not there:
        raise RecordError(
            "the first run wrote no metrics",
            where="repro-env sensitivity",
            hint='have the script write them, such as {"accuracy": 0.9} to metrics.json; CSV and TensorBoard files are read too',
        )
    if metric.name and len(found) != 1:
        what = f"is in {len(found)} files, with other values" if found else "is no metric of the first run"
        which = sorted(found or {one.name: one for one in there.values()})
        named = ", ".join(which[:_NAMES]) + (f" and {len(which) - _NAMES} more" if len(which) > _NAMES else "")
        raise UsageError(what, where=f"--metric {metric.name}", hint=f"there {'are' if len(which) > 1 else 'is'} {named}")


def _labels(metrics: Sequence[Metric], first: Sequence[Metric]) -> dict[str, Metric]:
    """Return `FILE:NAME` -> metric, with the file of the first run.

    A file whose path changes from run to run is matched by the name of a metric that only one such file has on each side.
    """
    new, old = _only(metrics, first), _only(first, metrics)
    files = {name: old[name][0] for name in new if len(new[name]) == len(old.get(name, ())) == 1}
    common = {metric.file for metric in first}
    return {
        f"{metric.file if metric.file in common else files.get(metric.name, metric.file)}:{metric.name}": metric
        for metric in metrics
    }


def _only(metrics: Sequence[Metric], others: Sequence[Metric]) -> dict[str, list[str]]:
    """Return metric name -> files with that metric that do not occur in `others`."""
    files = {metric.file for metric in others}
    found: dict[str, list[str]] = {}
    for metric in metrics:
        if metric.file not in files:
            found.setdefault(metric.name, []).append(metric.file)
    return found


def _chosen(there: dict[str, Metric], metric: Wanted) -> dict[str, Metric]:
    """The wanted one; several, where files have other values of that name."""
    found = {label: one for label, one in there.items() if metric.name in (one.name, label, f"{one.file}:{one.name}")}
    if len({_number(one, metric.which) for one in found.values()}) == 1:  # one number, told in several files
        found = dict(list(found.items())[:1])
    return found


def _number(metric: Metric, which: Which) -> float:
    value = metric.last if which == "last" else metric.least if which == "min" else metric.most
    return float(value)
