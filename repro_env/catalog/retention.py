"""Which runs may go: pure rules. What no rule can judge stays.

A rule names the runs that it keeps; a run goes when none does, and when nothing else holds it: a tag, a run that
started from it, that it is still running, or that it cannot be told when it ran.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from repro_env.catalog.records import Run
from repro_env.model.errors import RecordError, UsageError
from repro_env.model.run import Parent

Side = Literal["min", "max"]
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_WEEK = _UNITS["w"]
_MONDAY = 4 * 86400
"""1970 began on a Thursday; weeks begin on Monday."""
_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_FOLDER = re.compile(r"\d{8}T\d{6}Z-.+-[0-9a-f]{8}")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_LESS = {
    "loss",
    "nll",
    "bce",
    "kl",
    "err",
    "error",
    "errors",
    "mse",
    "rmse",
    "mae",
    "mape",
    "perplexity",
    "ppl",
    "wer",
    "cer",
    "fid",
}
_MORE = {
    "acc",
    "accuracy",
    "precision",
    "recall",
    "f1",
    "auc",
    "auroc",
    "auprc",
    "ap",
    "map",
    "bleu",
    "rouge",
    "iou",
    "miou",
    "dice",
}
_MORE |= {"psnr", "ssim", "reward", "score", "r2"}
_HINT = "say last=N, every=DURATION (30m, 12h, 1d, 2w), best=METRIC[:min|max][:N] or tagged"


class Last(msgspec.Struct, frozen=True):
    """The newest runs, however they ended."""

    count: int


class Every(msgspec.Struct, frozen=True):
    """The newest of each period: a finished one where the period has one. Periods begin at midnight UTC or on a Monday."""

    seconds: int
    text: str


class Best(msgspec.Struct, frozen=True):
    """The finished runs with the best value that they ever reached. Equal ones: the newer."""

    metric: str
    """Its name, or `FILE:NAME` where several files have it."""
    side: Side
    count: int


class Tagged(msgspec.Struct, frozen=True):
    """Those with a tag: none of them ever goes, so this alone lets all others go."""


Rule = Last | Every | Best | Tagged


class Facts(msgspec.Struct, frozen=True):
    """A run, and what is known of it beside its record."""

    run: Run
    tags: tuple[str, ...]


class Kept(msgspec.Struct, frozen=True):
    run: Run
    why: tuple[str, ...]


class Plan(msgspec.Struct, frozen=True):
    """Both in the order of the runs, newest first."""

    keep: tuple[Kept, ...]
    remove: tuple[Run, ...]


def rule(text: str) -> Rule:
    """One `--keep`. Raises `UsageError`."""
    name, equals, value = text.partition("=")
    if text == "tagged":
        return Tagged()
    if name == "last" and _COUNT.fullmatch(value):
        return Last(int(value))
    if name == "every" and (found := _DURATION.fullmatch(value)) is not None:
        return Every(int(found[1]) * _UNITS[found[2]], value)
    if name == "best" and equals:
        return _best(text, value)
    raise UsageError("is no rule", where=f"--keep {text}", hint=_HINT)


def _best(text: str, value: str) -> Best:
    """A metric's name may have colons: the number and the side are taken off its end."""
    count = 1
    left, colon, last = value.rpartition(":")
    if colon and _COUNT.fullmatch(last):
        value, count = left, int(last)
    left, colon, last = value.rpartition(":")
    side: Side | None = None
    if colon and last in ("min", "max"):
        value, side = left, "min" if last == "min" else "max"
    if not value:
        raise UsageError("names no metric", where=f"--keep {text}", hint=_HINT)
    side = side or _side(value)
    if side is None:
        raise UsageError(
            "does not say whether less or more is better",
            where=f"--keep {text}",
            hint=f"say best={value}:min or best={value}:max",
        )
    return Best(value, side, count)


def _side(metric: str) -> Side | None:
    """What the words of a name say, where they agree."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    if bool(words & _LESS) == bool(words & _MORE):
        return None
    return "min" if words & _LESS else "max"


def plan(facts: Sequence[Facts], rules: Sequence[Rule], held: Mapping[str, str]) -> Plan:
    """What stays, with every reason for it, and what goes.

    `facts`: all runs there are, newest first. `held`: ids or folder names of runs that must stay for what lies elsewhere,
    and why.
    Raises `UsageError` without a rule; `RecordError` for a metric that no run has: a name mistyped would let all go.
    """
    if not rules:
        raise UsageError("nothing is said of what stays", where="runs gc", hint=_HINT.replace("say", "give --keep with", 1))
    reasons: dict[str, list[str]] = {one.run.folder.name: [] for one in facts}
    for each in rules:
        for run, why in _kept(each, facts):
            reasons[run.folder.name].append(why)
    children = _children([one.run for one in facts])
    for one in facts:
        mine = reasons[one.run.folder.name]
        if one.run.state == "running":
            mine.append("running")
        mine += [f"tag {tag}" for tag in one.tags]
        born = {child.short: child for name in (one.run.start.id, one.run.folder.name) for child in children.get(name, ())}
        mine += [f"{short} started from it" for short in born]
        mine += [held[name] for name in (one.run.start.id, one.run.folder.name) if name in held]
        if when(one.run) is None:
            mine.append("when it started cannot be told")
    keep = tuple(Kept(one.run, tuple(reasons[one.run.folder.name])) for one in facts if reasons[one.run.folder.name])
    return Plan(keep, tuple(one.run for one in facts if not reasons[one.run.folder.name]))


def _kept(each: Rule, facts: Sequence[Facts]) -> list[tuple[Run, str]]:
    runs = [one.run for one in facts]
    if isinstance(each, Last):
        return [(run, f"last={each.count}") for run in runs[: each.count]]
    if isinstance(each, Every):
        return [(run, f"every={each.text}") for run in _periods(each, runs)]
    if isinstance(each, Best):
        return _ranked(each, runs)
    return []  # `plan` keeps every run with a tag


def _periods(each: Every, runs: Sequence[Run]) -> list[Run]:
    shift = _MONDAY if each.seconds % _WEEK == 0 else 0
    newest: dict[int, Run] = {}
    for run in runs:
        moment = when(run)
        if moment is None:
            continue
        period = (int(moment) - shift) // each.seconds
        if period not in newest or (newest[period].end is None and run.end is not None):
            newest[period] = run
    return list(newest.values())


def _ranked(each: Best, runs: Sequence[Run]) -> list[tuple[Run, str]]:
    values = [(value, run) for run in runs if (value := _value(each, run)) is not None]
    if not values:
        known = sorted({one.name for run in runs if run.end is not None for one in run.end.metrics})
        raise RecordError(
            f"no run has a number for the metric {each.metric!r}",
            where=f"--keep best={each.metric}",
            hint=f"they have {', '.join(known[:8])}" if known else "no run recorded any metric: keep by another rule",
        )
    sign = 1 if each.side == "min" else -1
    best = sorted(values, key=lambda pair: sign * pair[0])[: each.count]  # stable: of equal ones the newer comes first
    of = f" of {len(values)}" if len(values) > 1 else ""
    return [(run, f"best={each.metric}:{each.side} {value:.6g}, place {place}{of}") for place, (value, run) in enumerate(best, 1)]


def _value(each: Best, run: Run) -> float | None:
    """The best finite number that a run reached."""
    found: list[float] = []
    for one in run.end.metrics if run.end is not None else ():
        number = one.least if each.side == "min" else one.most
        if each.metric in (one.name, f"{one.file}:{one.name}") and isinstance(number, int | float) and math.isfinite(number):
            found.append(float(number))
    pick: Callable[[list[float]], float] = min if each.side == "min" else max
    return pick(found) if found else None


def parents(run: Run) -> tuple[Parent, ...]:
    """The runs that it started from, and those that it is known to have gone on from since it ended."""
    return (*run.start.parents, *(run.end.resumed if run.end is not None else ()))


def came_from(parents: Iterable[str], mounts: Iterable[str]) -> set[str]:
    """Ids of parents, and folder names of runs that paths lead into: older records mount a run's files without naming it."""
    return {*parents, *(part for path in mounts for part in path.split("/") if _FOLDER.fullmatch(part))}


def _children(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """By id or folder name of what they came from."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        own = {run.start.id, run.folder.name}
        for name in came_from((one.id for one in parents(run)), (one.source for one in run.start.data)) - own:
            found.setdefault(name, []).append(run)
    return found


def when(run: Run) -> float | None:
    """When it started, in seconds since 1970; None where its record does not say it as we write it."""
    try:
        return datetime.strptime(run.start.started, "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
    except (ValueError, OverflowError):
        return None
