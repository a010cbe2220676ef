"""`repro-env due`: say which runs must be verified or trained again, and why."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.api.runs import find_runs_directory
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import HtmlOption, RunsOption, flag, runs_option
from repro_env.cli.ui.page import Page, save
from repro_env.runs.records import ids

if TYPE_CHECKING:
    from repro_env.api.due import Due


def command(
    ask: Annotated[
        bool,
        flag("--ask", "Also ask package indexes for vulnerable, yanked and missing distributions. Their names are sent."),
    ] = False,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """Say which runs must be verified or trained again, and why.

    \b
      verify     not verified, too long ago, not as expected, or on another CPU
      retrain    data changed, a distribution is vulnerable or yanked, a metric is below the bound of its protocol
      keep       a package cannot be downloaded any more: `capture --ask` bundles it while it is installed

    Watched are the versions that have a stage (`runs promote`), and the runs with a tag of `[tool.repro-env.due]` in
    pyproject.toml; without both, the last run that ended well.

    Exit code 0: nothing is due. 1: something is due or could not be found out, or no run is watched.
    """
    from repro_env.api import due as use_case  # slow to import

    directory = find_runs_directory(runs)
    found = use_case.due(directory, ask=ask, tell=messages.say)
    show = functools.partial(_show, found)
    save(html, f"due in {directory.parent.name}", show, [f"repro-env due{' --ask' * ask}"])
    if not messages.answer_in_json(found):
        page = Page()
        show(page)
        page.print()
        if not found.runs:
            messages.say(f"no run in {directory} is watched; next: repro-env exec COMMAND")
        elif first := next((run for run in found.runs if any(reason.action == "verify" for reason in run.reasons)), None):
            messages.say(f"next: repro-env verify {ids.short(first.run)}{runs_option(runs)}")
        if not ask:
            messages.say("not asked: whether distributions are vulnerable, yanked or gone (--ask asks the package indexes)")
    raise typer.Exit(0 if found.good else 1)


def _show(found: Due, page: Page) -> None:
    count = sum(bool(run.reasons) for run in found.runs)
    if not found.runs:
        page.verdict("unknown", "no run is watched", "red")
    elif count:
        page.verdict("due", f"{count} of {len(found.runs)} watched runs", "red")
    elif found.good:
        page.verdict("not due", f"{len(found.runs)} watched", "green")
    else:
        page.verdict("unknown", "something could not be found out", "red")
    page.table(
        [
            row
            for run in found.runs
            for row in (
                *((ids.short(run.run), run.why, reason.action, reason.text) for reason in run.reasons),
                *((ids.short(run.run), run.why, "unknown", text) for text in run.unknown),
            )
        ],
        header=("RUN", "WATCHED AS", "DO", "WHY"),
    )
