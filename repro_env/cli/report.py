"""`repro-env report`: write a small site about the runs of a project."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from repro_env.api import due, policy
from repro_env.api import runs as use_case
from repro_env.api.policy import Judged
from repro_env.cli.ui import messages, policypage, runpage
from repro_env.cli.ui.options import RunsOption, argument, parse_path
from repro_env.cli.ui.page import Page, save
from repro_env.io.files import atomic_write
from repro_env.pages.parts import Link, Strip
from repro_env.policy.due import Watch, due_date
from repro_env.runs.records import annotation, pulled, verdicts
from repro_env.runs.records.annotation import Annotation
from repro_env.runs.records.pulled import Pulled
from repro_env.runs.records.records import Run
from repro_env.runs.records.verdicts import Last
from repro_env.schema.errors import ReproEnvError
from repro_env.specs.argument import open_spec
from repro_env.store.specs.files import SPEC
from repro_env.store.specs.lookup import DIRECTORY

_METRICS = 6
"""Metrics with a column: those that most runs have."""
_COLOURS = {"bitwise": "brightgreen", "equal except for": "green", "numeric": "yellow"}
"""Of the badge, by level; of any other, red."""


class Result(msgspec.Struct, frozen=True):
    """A run and what was added to it."""

    run: Run
    history: tuple[Last, ...]
    """Its verdicts, newest first."""
    annotations: Sequence[Annotation]
    source: Pulled | None
    due: str = ""
    """The day until which a watched run must be verified; `now` if it must be."""


def command(
    directory: Annotated[Path, argument("DIR", "Write the site to this directory.", parser=parse_path)],
    runs: RunsOption = None,
) -> None:
    """Write a small site about the runs of a project: a table, a page for each run, and a badge.

    \b
      DIR/index.html        all runs, with their verifications and metrics
      DIR/runs/ID.html      one run
      DIR/badge.json        the level of the newest verification, for shields.io

    The pages need no server and no network. The same runs give the same bytes. Pages of runs that were removed stay.
    """
    found = use_case.find_runs_directory(runs)
    listing = use_case.list_runs(found, tell=messages.say)
    watch = due.settings(found.parent)
    watched = set[str]()
    with contextlib.suppress(ReproEnvError):  # the page lists what cannot be read
        watched = {run.id for run, _ in due.watched(found, watch)}
    read = [_read(run, watch if run.id in watched else None) for run in listing.runs]
    results = [result for result in read if isinstance(result, Result)]
    unreadable = [str(entry) for entry in read if isinstance(entry, ReproEnvError)]
    unreadable += [str(entry.why) for entry in listing.unreadable]
    write(directory, found, results, unreadable)
    if not messages.answer_in_json({"directory": str(directory), "runs": len(results), "badge": _badge(results)}):
        messages.result(str(directory / "index.html"))


def _read(run: Run, watch: Watch | None) -> Result | ReproEnvError:
    """What was added to a run, or why it cannot be read. `watch`: the settings, for a run that is watched."""
    try:
        history = tuple(verdicts.history(run.directory))
        date = due_date(next(iter(history), None), watch) if watch is not None else ""
        return Result(run, history, annotation.of(run.directory), pulled.read(run.directory), date)
    except ReproEnvError as error:
        return error


def write(directory: Path, runs: Path, results: Sequence[Result], unreadable: Sequence[str]) -> None:
    """Write the site. `runs`: the directory of runs. `unreadable`: why records cannot be read."""
    (directory / "runs").mkdir(parents=True, exist_ok=True)
    for result in results:
        run = result.run
        show = functools.partial(
            runpage.show,
            run=run,
            annotations=result.annotations,
            verdict=next(iter(result.history), None),
            source=result.source,
        )
        save(directory / "runs" / f"{run.id}.html", f"run {run.short}", show, runpage.commands(run), tell=messages.say.detail)
    commands = [f"repro-env report {shlex.quote(str(directory))}"]
    show_all = functools.partial(_show, runs, results, unreadable, _judge(runs))
    save(directory / "index.html", f"runs of {runs.parent.name}", show_all, commands, tell=messages.say.detail)
    atomic_write(directory / "badge.json", msgspec.json.encode(_badge(results)) + b"\n")


def _judge(runs: Path) -> Judged | None:
    """The judgement of the project and its last run; None without a policy, or without a spec next to the runs."""
    if not (runs.parent / DIRECTORY / SPEC).is_file():
        return None
    found = policy.find(open_spec(runs.parent / DIRECTORY), runs=runs)
    return None if found is None else policy.judge(found, policy.last_run(runs))


def _show(runs: Path, results: Sequence[Result], unreadable: Sequence[str], judged: Judged | None, page: Page) -> None:
    newest = _newest(results)
    if newest is None:
        page.verdict("not verified", "no run was verified", "bold")
    else:
        page.verdict(newest.level, f"the newest verification ({newest.written})", "green" if newest.same else "red")
    page.row("runs", str(runs), indent=0)
    counts = Counter(metric.name for result in results if result.run.end for metric in result.run.end.metrics)
    names = sorted(sorted(counts), key=lambda name: -counts[name])[:_METRICS]
    page.heading("runs", f"{len(results):,}")
    header = ("RUN", "WHEN (UTC)", "COMMAND", "STATE", "VERIFIED", "DUE", *names)
    page.table([_row(result, names) for result in results], header=header)
    if unreadable:
        page.heading("cannot be read")
        page.table([(why,) for why in unreadable])
    if judged is not None:
        page.heading("policy")
        policypage.show(page, judged)


def _row(result: Result, names: Sequence[str]) -> tuple[str, ...]:
    run = result.run
    short, when, command = runpage.columns(run.start)
    last = {metric.name: runpage.number(metric.last) for metric in (run.end.metrics if run.end else ())}
    strip = Strip(", ".join(verdict.level for verdict in reversed(result.history)))
    return (
        Link.to(f"runs/{run.id}.html", short),
        when,
        command,
        run.ending,
        strip,
        result.due,
        *(last.get(name, "") for name in names),
    )


def _newest(results: Sequence[Result]) -> Last | None:
    return max((verdict for result in results for verdict in result.history), key=lambda verdict: verdict.written, default=None)


def _badge(results: Sequence[Result]) -> dict[str, object]:
    """What shields.io draws (its "endpoint badge", schema version 1)."""
    newest = _newest(results)
    message, colour = ("not verified", "lightgrey") if newest is None else (newest.level, _COLOURS.get(newest.level, "red"))
    return {"schemaVersion": 1, "label": "repro-env", "message": message, "color": colour}
