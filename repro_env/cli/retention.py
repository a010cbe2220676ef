"""`repro-env runs audit` and `runs gc`: check what runs recorded, and remove old runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.api.runs import find_runs_directory
from repro_env.cli.ui import messages, page
from repro_env.cli.ui.options import DryRunOption, RunsOption, argument, flag, runs_option, value
from repro_env.runs.records import ids
from repro_env.runs.records.records import Run
from repro_env.schema.messages import plural, shorten

if TYPE_CHECKING:
    from repro_env.api.audit import Audit
    from repro_env.api.runsgc import Collected
    from repro_env.compare.audit.findings import Finding

_WORDS = {"trace": "trace file", "code": "source tree", "data": "data set"}
"""Parts that the summary names differently."""
_MOST = 20
"""Lines of one kind about one run. More lines are only counted; `--json` has all of them."""
_NAMED = 3
"""Runs that a line names."""


def audit(
    run_ids: Annotated[
        list[str] | None,
        argument("ID", "Short IDs of runs, beginnings of their IDs, or `latest`. Default: all runs."),
    ] = None,
    ask: Annotated[bool, flag("--ask", "Also ask servers for the files that a rebuild would download.")] = False,
    runs: RunsOption = None,
) -> None:
    """Check that all recorded files still exist.

    Outputs, specs, images, code, data and checkpoints are compared with the records.

    Exit code 0: every file is unchanged. 1: a file is missing, changed or unrecorded, or no run was found.
    """
    from repro_env.api import audit as use_case
    from repro_env.store.store import Store

    directory = find_runs_directory(runs)
    result = use_case.audit(directory, run_ids or [], here=Path.cwd(), store=Store.open(), ask=ask, tell=messages.say)
    if not messages.answer_in_json(result):
        for line in _lines(result.findings):
            messages.result(line)
        messages.result(_summary(result))
        if not result.runs:
            messages.say(f"no runs in {directory}, so nothing was checked; next: repro-env exec COMMAND")
        else:
            command = f"show {ids.short(result.findings[0].runs[0])}" if result.findings else "list"
            messages.say(f"next: repro-env runs {command}{runs_option(runs)}")
    raise typer.Exit(1 if result.bad or not result.runs else 0)


def gc(
    keep: Annotated[
        list[str] | None,
        value(
            "RULE",
            "Keep the runs that match this rule: last=N, every=30m|12h|1d|2w, best=METRIC:min|max[:N], or tagged. "
            "Required; repeatable.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    runs: RunsOption = None,
) -> None:
    """Remove the runs that match no rule.

    Runs that have a tag, are still running, or are the parent of another run are always kept.
    """
    from repro_env.api import runsgc as use_case
    from repro_env.store.store import Store

    directory = find_runs_directory(runs)
    result = use_case.collect(directory, keep or [], store=Store.open(), dry_run=dry_run, tell=messages.say)
    if not messages.answer_in_json(result):
        _print(result, keep or [], runs)
    raise typer.Exit(1 if result.failed else 0)


def _lines(findings: tuple[Finding, ...]) -> list[str]:
    """One line for each finding, but at most `_MOST` lines of one kind about one run, with a count of the others."""
    lines: list[str] = []
    counts: dict[tuple[str, ...], int] = {}
    for finding in findings:
        kind = (finding.state, finding.part, *finding.runs)
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= _MOST:
            about = f"{finding.what}: {finding.why} ({_names(finding.runs)})"
            lines.append(messages.visible(f"{finding.state:<10}  {finding.part:<6}  {about}"))
    for (state, part, *runs), number in counts.items():
        if number > _MOST:
            lines.append(f"{state:<10}  {part:<6}  and {number - _MOST:,} more ({_names(tuple(runs))})")
    return lines


def _names(runs: tuple[str, ...]) -> str:
    return f"{'run' if len(runs) == 1 else 'runs'} {shorten([*map(ids.short, runs)], _NAMED)}"


def _summary(result: Audit) -> str:
    """One line: what was checked, and how many findings there are in each state."""
    checked = ", ".join(plural(number, _WORDS.get(part, part)) for part, number in result.checked.items() if number)
    states: dict[str, int] = {}
    for finding in result.findings:
        states[finding.state] = states.get(finding.state, 0) + 1
    answer = ", ".join(f"{number:,} {state}" for state, number in states.items())
    answer = answer or ("everything is there" if result.runs else "nothing was checked")
    return f"{plural(result.runs, 'run')}{f' ({checked})' if checked else ''}: {answer}"


def _print(result: Collected, rules: list[str], runs: Path | None) -> None:
    rows = [("keep", *_about(entry.run), ", ".join(entry.why)) for entry in result.keep]
    verb = "would remove" if result.dry_run else "removed"
    rows += [
        (verb, *_about(entry.run), f"{entry.run.ending}, matches no rule ({messages.size(entry.size)})") for entry in result.gone
    ]
    rows += [
        ("keep", entry.directory.name[-8:], "", f"its record cannot be read: {entry.why.what}") for entry in result.unreadable
    ]
    rows += [("failed", *_about(run), why) for run, why in result.failed]
    rows += [
        (verb, "spec", "", f"{spec.directory.name[:19]}… is not used by any run ({messages.size(spec.size)})")
        for spec in result.specs
    ]
    page.table(rows).print()
    total = len(result.keep) + len(result.gone) + len(result.unreadable) + len(result.failed)
    messages.result(f"{verb}: {len(result.gone):,} of {total:,} runs, {messages.size(result.freed)}")
    repeat = result.dry_run and result.gone
    command = shlex.join(["gc", *(word for rule in rules for word in ("--keep", rule))]) if repeat else "list"
    messages.say(f"next: repro-env runs {command}{runs_option(runs)}")


def _about(run: Run) -> tuple[str, str]:
    return run.short, run.start.started[:19].replace("T", " ")
