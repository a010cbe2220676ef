"""`repro-env runs push`, `runs pull` and `runs list --from`: share runs in a registry or a directory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from repro_env.api import runsshare
from repro_env.api.runs import find_runs_directory
from repro_env.api.runsshare import Failed, Pushed
from repro_env.cli.ui import messages, runpage
from repro_env.cli.ui.options import RunsOption, argument, runs_option, value
from repro_env.runs.records import ids
from repro_env.schema.errors import RecordError
from repro_env.schema.messages import plural, shorten
from repro_env.schema.progress import Tell

_Catalog = Annotated[str, argument("REF|DIR", "The catalog: HOST/NAME in a registry, or an existing directory.")]
_Runs = Annotated[list[str] | None, argument("ID", "Short IDs of runs, or beginnings of their IDs. Default: all runs.")]
_Outputs = Annotated[
    list[str] | None,
    value(
        "all|none|GLOB",
        "Choose the outputs: all, none, or those that match a pattern. Repeatable. Default: the smallest outputs, up to 1 GB per run.",
    ),
]
_NAMED = 3


def push(
    catalog: _Catalog,
    run_ids: _Runs = None,
    outputs: _Outputs = None,
    not_secret: Annotated[
        list[str] | None, value("GLOB", "Push files that match, even if they seem to contain a secret. Repeatable.")
    ] = None,
    runs: RunsOption = None,
) -> None:
    """Push runs to a catalog that a team shares: records, outputs, specs and code.

    \b
      repro-env runs push /shared/runs                  all runs that have ended, to a directory
      repro-env runs push REGISTRY/TEAM/RUNS latest     one run, to a registry
      repro-env runs push /shared/runs --outputs all    with large outputs too

    What the catalog has is not sent again. A different run with the same ID is refused.

    Exit code 0: every run is in the catalog. Another code: that of the first run that could not be pushed.
    """
    result = runsshare.push_runs(
        catalog, run_ids or (), runs=runs, outputs=outputs or (), not_secret=not_secret or (), tell=messages.say
    )
    report_push(result, messages.say)
    if not messages.answer_in_json(result):
        for run in result.runs:
            messages.result(f"{ids.short(run.id)}  {'pushed' if run.files or run.blobs else 'unchanged'}")
        messages.say(f"next: repro-env runs list --from {shlex.quote(catalog)}")
    _fail(result.failed)


def report_push(result: Pushed, tell: Tell) -> None:
    """Report what was sent and what was left out."""
    for run in result.runs:
        _report_left_out(ids.short(run.id), run.left_out, "the catalog does not have", "push them with --outputs all", tell)
    blobs, size = sum(run.blobs for run in result.runs), sum(run.size for run in result.runs)
    runs = plural(len(result.runs), "run")
    if blobs:
        tell(f"sent {messages.size(size)} in {plural(blobs, 'blob')} to {result.catalog} for {runs}")
    else:
        tell(f"nothing was sent: {result.catalog} has all files of {runs}")


def pull(
    catalog: _Catalog,
    run_ids: _Runs = None,
    outputs: _Outputs = None,
    runs: RunsOption = None,
) -> None:
    """Pull runs from a catalog into the directory of runs, with their specs and code.

    \b
      repro-env runs pull /shared/runs                             all runs
      repro-env runs pull REGISTRY/TEAM/RUNS 1f2e3d4c              one run
      repro-env runs pull /shared/runs 1f2e3d4c --outputs '*.pt'   one run, with only these outputs

    Everything is checked against the records. A run that is here gets the files that it lacks; nothing is overwritten, and
    a different run with the same ID is refused.

    Exit code 0: every run is here. Another code: that of the first run that could not be pulled.
    """
    result = runsshare.pull_runs(catalog, run_ids or (), runs=runs, outputs=outputs or (), tell=messages.say)
    for run in result.runs:
        if run.state != "unchanged":
            hint = f"pull them with: repro-env runs pull {shlex.quote(catalog)} {ids.short(run.id)} --outputs all"
            _report_left_out(ids.short(run.id), run.left_out, "did not pull", hint, messages.say)
            hint = "push them with --outputs all from where the run was made"
            _report_left_out(ids.short(run.id), run.not_pushed, "the catalog does not have", hint, messages.say)
    if not messages.answer_in_json(result):
        for run in result.runs:
            messages.result(f"{ids.short(run.id)}  {run.state}  {run.directory}")
        if not result.runs and not result.failed:
            messages.say(f"there are no runs in {result.catalog}")
        elif result.runs:
            messages.say(f"next: repro-env runs show {ids.short(result.runs[-1].id)}{runs_option(runs)}")
    _fail(result.failed)


def list_shared(catalog: str, tags: Sequence[str]) -> None:
    """List the runs of a catalog."""
    listing = runsshare.list_shared_runs(catalog)
    selected = [run for run in listing.runs if set(tags) <= set(run.tags)]
    if messages.answer_in_json({"runs": selected, "unreadable": listing.unreadable}):
        return
    if selected:
        runpage.table([runpage.row(run.line()) for run in selected]).print()
    for damaged in listing.unreadable:
        messages.say.warn(f"cannot be used: {damaged.why}")
    if selected:
        try:
            find_runs_directory(None)
            option = ""
        except RecordError:
            option = " --runs runs"
        messages.say(f"next: repro-env runs pull {shlex.quote(catalog)} {selected[0].short}{option}")
    else:
        messages.say(
            f"no runs{' with these tags' * bool(tags)} in {listing.catalog}; next: repro-env runs push {shlex.quote(catalog)}"
        )


def _report_left_out(run: str, left_out: Sequence[str], what: str, hint: str, tell: Tell) -> None:
    if left_out:
        tell.warn(f"run {run}: {what} {plural(len(left_out), 'output')}: {shorten(left_out, _NAMED)}; {hint}")


def _fail(failed: Sequence[Failed]) -> None:
    """Print the errors, and end with the code of the first one."""
    for failure in failed:
        messages.error(failure.why)
    if failed:
        raise typer.Exit(failed[0].why.exit_code)
