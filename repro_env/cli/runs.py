"""`repro-env runs`: list, show, annotate and remove runs, copy their outputs, and print their logs."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from repro_env.api import jobs
from repro_env.api import runs as use_case
from repro_env.cli import retention, runscompare, runslist, runsshare, versions
from repro_env.cli.ui import curves, messages, runpage
from repro_env.cli.ui.options import (
    AllOption,
    ByOption,
    HtmlOption,
    RunArgument,
    RunsOption,
    argument,
    flag,
    parse_path,
    runs_option,
    value,
)
from repro_env.cli.ui.page import Page, save
from repro_env.runs.records import annotation, pulled, records, verdicts
from repro_env.runs.records.submissions import Submitted
from repro_env.runs.start import resumption
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.rundirectory import STDERR
from repro_env.store.store import Store

_Tags = Annotated[
    list[str],
    argument(
        "TAG", "A tag: up to 64 of the characters a to z, 0 to 9 and . _ / + -. The first and the last are a letter or digit."
    ),
]


def show(
    run_id: RunArgument = "latest",
    all_: AllOption = False,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """Show a run: command, environment, data, metrics, outputs and notes."""
    directory = use_case.find_runs_directory(runs)
    jobs.bring_home(directory, os.environ, messages.say)
    found = jobs.locate(directory, run_id)
    if isinstance(found, Submitted):
        _show_job(found)
        return
    run = records.read(found)
    job = None
    if run.start.job is not None:
        job = jobs.unfinished(found.parent, os.environ).get(run.id)
    annotations = annotation.of(run.directory)
    try:
        verdict = verdicts.last(run.directory)
    except ReproEnvError as error:  # show the run even if its verdict cannot be read
        messages.error(error)
        verdict = None
    source = pulled.read(run.directory)
    facts = {"directory": str(run.directory), "state": run.state, "intact": run.intact, "start": run.start, "end": run.end}
    tags = list(annotation.tags(annotations))
    state = "" if job is None else runpage.in_queue(run, job[1])
    add = functools.partial(runpage.show, run=run, annotations=annotations, verdict=verdict, source=source, queue=state)
    save(html, f"run {run.short}", add, runpage.commands(run))
    if messages.answer_in_json({**facts, "verified": verdict, "pulled": source, "tags": tags, "annotations": list(annotations)}):
        return
    page = runpage.new(complete=all_)
    add(page)
    page.print()
    if run.end is not None and run.end.outputs:
        messages.say(f"next: repro-env runs get {run.short} --to DIR{runs_option(runs)}")


def plot(
    metric: Annotated[str, argument("METRIC", "The name of a metric, as `runs show` lists it, or FILE:NAME.")],
    run_ids: Annotated[
        list[str] | None, argument("ID...", "Runs, each by its short ID, the beginning of its ID, or `latest`. Default: latest.")
    ] = None,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """Draw the values of a metric in one run or in several."""
    found = [records.read(_find(run_id, runs)) for run_id in run_ids or ["latest"]]
    drawn = curves.of_metric(metric, found)
    add = functools.partial(Page.chart, title=metric, curves=drawn)
    words = ["repro-env", "runs", "plot", metric, *(run.short for run in found)]
    save(html, f"{metric} of {', '.join(run.short for run in found)}", add, [shlex.join(words) + runs_option(runs)])
    if not messages.answer_in_json(
        {"metric": metric, "runs": [{"run": run.id, "values": curve.values} for run, curve in zip(found, drawn, strict=True)]}
    ):
        page = Page()
        add(page)
        page.print()


def get(
    run_id: RunArgument = "latest",
    glob: Annotated[
        str | None,
        argument("GLOB", "The outputs to copy: a path, name, directory or pattern. Default: all outputs."),
    ] = None,
    to: Annotated[
        Path, value("DIR", "Copy the outputs to this directory. Default: the current directory.", parser=parse_path)
    ] = Path(),
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    runs: RunsOption = None,
) -> None:
    """Copy outputs of a run to a directory."""
    run = records.read(_find(run_id, runs))
    if run.state == "interrupted":
        resumption.restore(run, Store.open())
    copies = use_case.copy_outputs(run, glob, to.resolve(), force=force, tell=messages.say)
    if messages.answer_in_json({"files": [str(path) for path in copies]}):
        return
    for path in copies:
        messages.result(messages.visible(str(path)))
    if run.state != "done":
        messages.say(f"note: the run is {run.state}, so there may be more outputs")
    messages.say(f"next: repro-env runs show {run.short}{runs_option(runs)}")


def logs(
    run_id: RunArgument = "latest",
    runs: RunsOption = None,
) -> None:
    """Print the output of a run's command, on stdout and stderr."""
    found = jobs.locate(use_case.find_runs_directory(runs), run_id)
    if isinstance(found, Submitted):
        jobs.client_of(found, os.environ).logs(found.job)  # an engine may keep them elsewhere
    directory = found.directory if isinstance(found, Submitted) else found
    lines = use_case.read_logs(directory)
    if messages.Screen.json:
        by_name: dict[str, list[str]] = {}
        for name, line in lines:
            by_name.setdefault(name, []).append(line)
        messages.json_result({"run": directory.name, "logs": by_name})
        return
    for name, line in lines:
        (messages.say if name.endswith(STDERR) else messages.result)(line)


def rm(
    run_ids: Annotated[list[str], argument("ID", "Short IDs of runs, beginnings of their IDs, or `latest`.")],
    force: Annotated[bool, flag("--force", "Also remove runs that are still running.")] = False,
    runs: RunsOption = None,
) -> None:
    """Remove runs with their outputs."""
    directory = use_case.find_runs_directory(runs)
    removed = jobs.remove(directory, run_ids, os.environ, force=force)
    if messages.answer_in_json({"removed": [path.name for path in removed]}):
        return
    for path in removed:
        messages.result(f"removed {path.name}")
    messages.say(f"next: repro-env runs list{runs_option(runs)}")


def note(
    run_id: RunArgument,
    words: Annotated[list[str], argument("TEXT", "The text of the note.")],
    decision: Annotated[bool, flag("--decision", "Mark the note as a decision.")] = False,
    by: ByOption = "",
    runs: RunsOption = None,
) -> None:
    """Add a note to a run."""
    directory = _find(run_id, runs)
    annotation = use_case.note(directory, " ".join(words), decision=decision, by=by)
    if messages.answer_in_json({"run": directory.name, "annotation": annotation}):
        return
    messages.result(f"added a {annotation.kind} to {directory.name} at {annotation.written}")
    messages.say(f"next: repro-env runs show {run_id}{runs_option(runs)}")


def tag(run_id: RunArgument, tags: _Tags, by: ByOption = "", runs: RunsOption = None) -> None:
    """Add tags to a run. `runs gc` never removes a run that has a tag."""
    directory = _find(run_id, runs)
    _print_tags(directory, use_case.tag(directory, tags, by=by), runs)


def untag(run_id: RunArgument, tags: _Tags, by: ByOption = "", runs: RunsOption = None) -> None:
    """Remove tags from a run. Removed tags stay in the history."""
    directory = _find(run_id, runs)
    _print_tags(directory, use_case.untag(directory, tags, by=by), runs)


def _print_tags(directory: Path, tags: tuple[str, ...], runs: Path | None) -> None:
    """Print the tags that the run has now."""
    if messages.answer_in_json({"run": directory.name, "tags": list(tags)}):
        return
    messages.result(f"{directory.name}: {', '.join(tags) or 'no tags'}")
    messages.say(f"next: repro-env runs list{runs_option(runs)}")


def _show_job(submitted: Submitted) -> None:
    """Print the page of a submitted run that has not started."""
    state = jobs.state_of(submitted, os.environ)
    if messages.answer_in_json(runpage.jobs([(submitted, state)])[0]):
        return
    page = runpage.new(complete=True)
    page.rows(runpage.job(submitted, state))
    page.print()


def _find(run_id: str, runs: Path | None) -> Path:
    """The directory of a run. Raises `RecordError` if no run has the name."""
    return records.find(use_case.find_runs_directory(runs), run_id)


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": runslist.command,
    "show": show,
    "plot": plot,
    "get": get,
    "logs": logs,
    "rm": rm,
    "compare": runscompare.command,
    "note": note,
    "tag": tag,
    "untag": untag,
    "promote": versions.promote,
    "versions": versions.command,
    "retire": versions.retire,
    "push": runsshare.push,
    "pull": runsshare.pull,
    "audit": retention.audit,
    "gc": retention.gc,
}
group = typer.Typer(no_args_is_help=True)
for _name, _command in _COMMANDS.items():
    group.command(_name)(_command)
