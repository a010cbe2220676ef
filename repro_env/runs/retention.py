"""Decide which runs `runs gc` removes. Pure.

A run is kept if a rule keeps it, if it has a tag, if another run started from it, if it is running, or if its start time
is unknown. All other runs are removed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec

from repro_env.runs.records.records import Run
from repro_env.schema.errors import RecordError, UsageError

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WEEK = _UNITS["w"]
_MONDAY = 4 * 86400
"""The first Monday of 1970, in seconds."""
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_HINT = "use last=N, every=DURATION (30m, 12h, 1d, 2w), best=METRIC:min|max[:N] or tagged"


Rule = Callable[[Sequence[Run]], list[tuple[Run, str]]]
"""Returns the runs that a rule keeps, with the reason, of all runs, newest first."""


class Facts(msgspec.Struct, frozen=True):
    """A run and its tags."""

    run: Run
    tags: tuple[str, ...]


class KeptRun(msgspec.Struct, frozen=True):
    run: Run
    why: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """The runs to keep and to remove, newest first."""

    keep: tuple[KeptRun, ...]
    remove: tuple[Run, ...]


def parse_rule(text: str) -> Rule:
    """Parse a value of `--keep`. Raises `UsageError`."""
    name, equals, value = text.partition("=")
    if text == "tagged":
        return lambda runs: []  # noqa: ARG005 - `plan` keeps every run with a tag
    if name == "last" and _COUNT.fullmatch(value):
        return lambda runs: [(run, text) for run in runs[: int(value)]]
    if name == "every" and (match := _DURATION.fullmatch(value)) is not None:
        seconds = int(match[1]) * _UNITS[match[2]]
        return lambda runs: [(run, text) for run in _newest_of_periods(seconds, runs)]
    if name == "best" and equals:
        return _parse_best(text, value)
    raise UsageError(f'invalid value for --keep: "{text}"', hint=_HINT)


def _parse_best(text: str, value: str) -> Rule:
    """Parse the value of `best=`. The name of a metric may have colons, so the value is parsed from its end."""
    count = 1
    name, colon, suffix = value.rpartition(":")
    if colon and _COUNT.fullmatch(suffix):
        value, count = name, int(suffix)
    metric, _, side = value.rpartition(":")
    if not metric or side not in ("min", "max"):
        raise UsageError("this rule does not say whether lower or higher values are better", where=f"--keep {text}", hint=_HINT)
    return lambda runs: _best_runs(metric, side, count, runs)


def plan(facts: Sequence[Facts], rules: Sequence[Rule], held: Mapping[str, str]) -> Plan:
    """Decide which runs to keep, with all reasons, and which to remove.

    `facts`: all runs, newest first. `held`: id of a run that other directories need -> the reason.
    Raises `UsageError` without rules, and `RecordError` for a metric that no run has, since a mistyped name would
    otherwise remove all runs.
    """
    if not rules:
        raise UsageError("runs gc needs a rule for the runs to keep", hint=_HINT.replace("use", "add --keep", 1))
    reasons: dict[str, list[str]] = {fact.run.directory.name: [] for fact in facts}
    for rule in rules:
        for run, why in rule([fact.run for fact in facts]):
            reasons[run.directory.name].append(why)
    children = _children([fact.run for fact in facts])
    for fact in facts:
        run_id = fact.run.start.id
        own = reasons[fact.run.directory.name]
        if fact.run.state == "running":
            own.append("running")
        own += [f"tag {tag}" for tag in fact.tags]
        own += dict.fromkeys(f"{child.short} started from it" for child in children.get(run_id, ()))
        own += [held[run_id]] if run_id in held else []
        if start_time(fact.run) is None:
            own.append("its start time is unknown")
    keep = tuple(KeptRun(fact.run, tuple(reasons[fact.run.directory.name])) for fact in facts if reasons[fact.run.directory.name])
    return Plan(keep, tuple(fact.run for fact in facts if not reasons[fact.run.directory.name]))


def _newest_of_periods(length: int, runs: Sequence[Run]) -> list[Run]:
    """Return the newest finished run of each period of `length` seconds, or the newest run if none finished.

    Periods start at midnight UTC; periods of weeks start on Monday.
    """
    shift = _MONDAY if length % _WEEK == 0 else 0
    newest: dict[int, Run] = {}
    for run in runs:
        seconds = start_time(run)
        if seconds is None:
            continue
        period = (int(seconds) - shift) // length
        if period not in newest or (newest[period].end is None and run.end is not None):
            newest[period] = run
    return list(newest.values())


def _best_runs(metric: str, side: str, count: int, runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Return the finished runs with the best values of a metric. Of runs with equal values, the newer is better.

    `metric`: the name, or `FILE:NAME`, which selects one of several files with the same name. `side`: `min` or `max`.
    """
    values = [(value, run) for run in runs if (value := _value(metric, side, run)) is not None]
    if not values:
        names = sorted({metric.name for run in runs if run.end is not None for metric in run.end.metrics})
        raise RecordError(
            f"no run has a number for the metric {metric!r}",
            where=f"--keep best={metric}",
            hint=f"the runs have {', '.join(names[:8])}" if names else "the runs have no metrics; use another rule",
        )
    best = sorted(values, key=lambda pair: pair[0] if side == "min" else -pair[0])[:count]  # stable: the newer run is first
    of = f" of {len(values)}" if len(values) > 1 else ""
    return [(run, f"best={metric}:{side} {value:.6g}, rank {rank}{of}") for rank, (value, run) in enumerate(best, 1)]


def _value(name: str, side: str, run: Run) -> float | None:
    """Return the best finite value of the metric in a run."""
    values: list[float] = []
    for metric in run.end.metrics if run.end is not None else ():
        value = metric.least if side == "min" else metric.most
        if name in (metric.name, f"{metric.file}:{metric.name}") and isinstance(value, int | float) and math.isfinite(value):
            values.append(float(value))
    pick: Callable[[list[float]], float] = min if side == "min" else max
    return pick(values) if values else None


def _children(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Map the id of each parent to its children."""
    children: dict[str, list[Run]] = {}
    for run in runs:
        for parent in run.parents:
            if parent.id != run.id:
                children.setdefault(parent.id, []).append(run)
    return children


def start_time(run: Run) -> float | None:
    """Return the start time of a run in seconds since 1970; None if its record has no valid time."""
    try:
        return datetime.strptime(run.start.started, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
    except (ValueError, OverflowError):
        return None
