"""`repro-env runs list`: list the runs of a project, with their metrics."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, TypeVar

from repro_env.api import jobs
from repro_env.api import runs as use_case
from repro_env.cli import runsshare
from repro_env.cli.ui import messages, runpage
from repro_env.cli.ui.options import RunsOption, runs_option, value
from repro_env.launch.engine import State
from repro_env.policy import bound
from repro_env.policy.bound import Bound
from repro_env.runs.records import ids, records
from repro_env.runs.records.records import Run
from repro_env.runs.records.submissions import Submitted
from repro_env.runs.records.summary import RunLine
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Number

Listed = TypeVar("Listed", Run, RunLine)
_LONGEST = 60
_CONDITION = re.compile(r"(.+?)\s*([<>=!].*)")


class Condition(NamedTuple):
    """A condition of --where."""

    metric: str
    bound: Bound


def parse_condition(text: str) -> Condition:
    """Parse `NAME<VALUE`. Raises `UsageError`."""
    match = _CONDITION.fullmatch(text.strip())
    required = bound.parse(match[2]) if match else None
    if match is None or required is None:
        hint = "for example: --where 'loss<0.1'; the comparisons are < <= > >= = !="
        raise UsageError(f'--where must be NAME<VALUE (got "{text}")', hint=hint)
    return Condition(match[1], required)


def command(
    tag: Annotated[
        list[str] | None, value("TAG", "List only runs that have this tag. Repeatable: runs must have all tags.")
    ] = None,
    metric: Annotated[list[str] | None, value("NAME", "Show the last value of this metric in a column. Repeatable.")] = None,
    where: Annotated[
        list[str] | None,
        value("NAME<VALUE", "List only runs whose last value of a metric is so: <, <=, >, >=, = or !=. Repeatable."),
    ] = None,
    sort: Annotated[
        str | None, value("NAME", "Sort by the last value of this metric, the smallest first; with a `-` before it, the largest.")
    ] = None,
    from_: Annotated[
        str | None, value("REF|DIR", "List the runs in this catalog (`repro-env runs push`) instead.", "--from")
    ] = None,
    runs: RunsOption = None,
) -> None:
    """List the runs, newest first."""
    if from_ is not None and runs is not None:
        raise UsageError("--from and --runs are mutually exclusive", hint="give one of them")
    conditions = [*map(parse_condition, where or ())]
    if from_ is not None and (metric or conditions or sort):
        raise UsageError("a catalog has no metrics", hint="pull the runs first: repro-env runs pull REF")
    if from_ is not None:
        runsshare.list_shared(from_, tag or ())
        return
    directory = use_case.find_runs_directory(runs)
    jobs.bring_home(directory, os.environ, messages.say)
    wanted = set(tag or ())
    if messages.Screen.json:
        listing = use_case.list_runs(directory, tell=messages.say)
        found = [run for run in listing.runs if wanted <= set(run.tags or ()) and _are_met(conditions, last_values(run))]
        found = _sorted(found, sort, [*map(last_values, found)])
        waiting = runpage.jobs(jobs.unfinished(directory, os.environ).values())
        messages.json_result({"runs": found, "unreadable": listing.unreadable, "jobs": waiting})
        return
    lines, unreadable = use_case.list_lines(directory, tell=messages.say)
    selected = [line for line in lines if wanted <= set(line.tags or ())]
    columns = [*(metric or ()), *([sort.removeprefix("-")] if sort and sort.removeprefix("-") not in (metric or ()) else ())]
    values: dict[str, Mapping[str, Number]] = {}
    if columns or conditions:
        values = {run.id: last_values(run) for run in use_case.list_runs(directory, tell=messages.say).runs}
        selected = [line for line in selected if line.id in values and _are_met(conditions, values[line.id])]
        selected = _sorted(selected, sort, [values[line.id] for line in selected])
        known = {name for found in values.values() for name in found}
        for name in (name for name in columns if name not in known):
            import difflib  # slow to import

            near = difflib.get_close_matches(name, known, 1)
            messages.say.warn(f"no run has the metric {name}" + (f"; did you mean {near[0]}?" if near else ""))
    unfinished = jobs.unfinished(directory, os.environ)
    rows: list[tuple[str, ...]] = [
        (*runpage.columns(item.submission.start), _shorten(runpage.before_start(state, item)))
        for item, state in unfinished.values()
        if not (tag or conditions or item.runs)
    ]
    first = rows[0][0] if rows and not selected else ids.short(selected[0].id) if selected else ""
    rows += [
        runpage.row(line, _in_queue(line, unfinished.get(line.id)), [_number(values[line.id].get(name)) for name in columns])
        for line in selected
    ]
    if rows:
        runpage.table(rows, columns).print()
    for damaged in unreadable:
        messages.say.warn(f"cannot be read: {damaged.why}")
    for line in lines:
        if line.tags is None:
            messages.say.warn(f"the notes and tags of {records.find(directory, line.id)} cannot be read")
    if first:
        messages.say(f"next: repro-env runs show {first}{runs_option(runs)}")
    else:
        command = f"runs list{runs_option(runs)}" if lines else "exec COMMAND"
        messages.say(
            f"no runs{' with these tags' if tag else ' that meet the conditions' if conditions else ''} in {directory}; next: repro-env {command}"
        )


def last_values(run: Run) -> dict[str, Number]:
    """The last value of each metric (`bound.last_values`)."""
    return bound.last_values(run.end)


def _are_met(conditions: Iterable[Condition], metrics: Mapping[str, Number]) -> bool:
    return all(condition.bound.holds(metrics.get(condition.metric)) for condition in conditions)


def _sorted(runs: list[Listed], name: str | None, values: Sequence[Mapping[str, Number]]) -> list[Listed]:
    """The runs by a metric; those without a number last, the newest first."""
    if name is None:
        return runs
    sign = -1 if name.startswith("-") else 1

    def key(index: int) -> tuple[bool, float]:
        number = float(values[index].get(name.removeprefix("-"), math.nan))
        return math.isnan(number), 0.0 if math.isnan(number) else sign * number

    return [runs[index] for index in sorted(range(len(runs)), key=key)]


def _number(value: Number | None) -> str:
    return "" if value is None else runpage.number(value)


def _shorten(state: str) -> str:
    """The state of a job for a table. Engines explain some of them in a few hundred characters."""
    return state if len(state) <= _LONGEST else f"{state[: _LONGEST - 1]}…"


def _in_queue(line: RunLine, job: tuple[Submitted, State] | None) -> str:
    return "" if job is None else runpage.in_queue(line, job[1])
