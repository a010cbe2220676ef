"""`repro-env runs audit` and `runs gc`: is all there that runs recorded, and which runs stay."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import say
from repro_env.cli.options import JsonOption, RunsOption, again

if TYPE_CHECKING:
    from repro_env.catalog.audit import Finding
    from repro_env.catalog.records import Run
    from repro_env.flows.audit import Audit
    from repro_env.flows.retention import Collected

_WORDS = {"trace": "trace file", "code": "source tree", "data": "data set"}
"""Parts that are counted under another word."""
_MOST = 20
"""Lines of one kind about one run; the rest is counted. `--json` has all."""
_NAMED = 3
"""Runs that a line names."""


def add_below(below: typer.Typer) -> None:
    """The two commands, below `runs`."""
    below.command(name="audit", help="Check that all is there that runs recorded; exit 1 when not.")(audit)
    below.command(name="gc", help="Remove the runs that no rule keeps. Tags, descendants and running ones stay.")(gc)


def audit(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(help="Short ids, beginnings of them, or `latest`. Default: all.", metavar="ID", show_default=False),
    ] = None,
    ask: Annotated[bool, typer.Option("--ask", help="Ask servers whether they still have what a rebuild would fetch.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.catalog import ids
    from repro_env.flows import audit as story
    from repro_env.flows.runs import where
    from repro_env.store.store import Store

    folder = where(runs.absolute() if runs is not None else None, Path.cwd())
    done = story.audit(folder, run_ids or [], here=Path.cwd(), store=Store.open(), ask=ask, tell=say.tell)
    if json:
        say.json_result(_audited(done))
    else:
        for line in _lines(done.findings):
            say.result(line)
        say.result(_summary(done))
        if not done.runs:
            say.say(f"no runs in {folder}, so nothing was looked at; next: repro-env exec COMMAND")
        else:
            following = f"show {ids.short(done.findings[0].runs[0])}" if done.findings else "list"
            say.say(f"next: repro-env runs {following}{again(runs)}")
    raise typer.Exit(1 if done.bad or not done.runs else 0)


def gc(
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="A rule, repeatable: last=N, every=30m|12h|1d|2w, best=METRIC[:min|max][:N], tagged. What none keeps goes.",
            metavar="RULE",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.flows import retention as story
    from repro_env.flows.runs import where
    from repro_env.store.store import Store

    folder = where(runs.absolute() if runs is not None else None, Path.cwd())
    done = story.collect(folder, keep or [], store=Store.open(), dry_run=dry_run, tell=say.tell)
    if json:
        say.json_result(_collected(done))
    else:
        _print(done, keep or [], runs)
    raise typer.Exit(1 if done.failed else 0)


def _lines(found: tuple[Finding, ...]) -> list[str]:
    """One line a finding; of many of one kind about one run, the first ones and how many more."""
    lines: list[str] = []
    counts: dict[tuple[str, ...], int] = {}
    for one in found:
        kind = (one.state, one.part, *one.runs)
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= _MOST:
            lines.append(say.visible(f"{one.state:<10}  {one.part:<6}  {one.what}: {one.why} ({_named(one.runs)})"))
    for (state, part, *runs), count in counts.items():
        if count > _MOST:
            lines.append(f"{state:<10}  {part:<6}  and {count - _MOST:,} more ({_named(tuple(runs))})")
    return lines


def _named(runs: tuple[str, ...]) -> str:
    from repro_env.catalog import ids

    shown = ", ".join(ids.short(one) for one in runs[:_NAMED])
    rest = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"{'run' if len(runs) == 1 else 'runs'} {shown}{rest}"


def _summary(done: Audit) -> str:
    """What was looked at, and what came of it."""
    checked = ", ".join(
        f"{count:,} {_WORDS.get(part, part)}{'' if count == 1 else 's'}" for part, count in done.checked.items() if count
    )
    states: dict[str, int] = {}
    for one in done.findings:
        states[one.state] = states.get(one.state, 0) + 1
    result = ", ".join(f"{count:,} {state}" for state, count in states.items()) or ("all there" if done.runs else "nothing")
    return f"{done.runs:,} {'run' if done.runs == 1 else 'runs'} ({checked or 'nothing'}): {result}"


def _audited(done: Audit) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    return {"runs": done.runs, "checked": done.checked, "bad": done.bad, "findings": done.findings}


def _print(done: Collected, rules: list[str], runs: Path | None) -> None:
    rows = [("keep", *_about(one.run), ", ".join(one.why)) for one in done.keep]
    verb = "would go" if done.dry_run else "removed"
    rows += [(verb, *_about(one.run), f"{_state(one.run)}, no rule keeps it ({say.size(one.size)})") for one in done.gone]
    rows += [("keep", one.folder.name[-8:], "", f"its record cannot be read: {one.why.what}") for one in done.unreadable]
    rows += [("failed", *_about(run), why) for run, why in done.failed]
    rows += [(verb, "spec", "", f"{one.folder.name[:19]}… no run names it any more ({say.size(one.size)})") for one in done.specs]
    if rows:
        say.result(say.table(rows))
    freed = sum(one.size for one in done.gone) + sum(one.size for one in done.specs)
    there = len(done.keep) + len(done.gone) + len(done.unreadable) + len(done.failed)
    say.result(f"{verb}: {len(done.gone):,} of {there:,} runs, {say.size(freed)}")
    following = (
        shlex.join(["gc", *(word for rule in rules for word in ("--keep", rule))]) if done.dry_run and done.gone else "list"
    )
    say.say(f"next: repro-env runs {following}{again(runs)}")


def _about(run: Run) -> tuple[str, str]:
    return run.short, run.start.started[:19].replace("T", " ")


def _state(run: Run) -> str:
    if run.end is None:
        return run.state
    outcome = run.end.outcome
    return f"signal {outcome.signal}" if outcome.signal else f"exit {outcome.exit_code}"


def _collected(done: Collected) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    return {
        "dry_run": done.dry_run,
        "kept": [{**_facts(one.run), "why": list(one.why)} for one in done.keep],
        "removed": [{**_facts(one.run), "size": one.size} for one in done.gone],
        "unreadable": [{"folder": one.folder.name, "error": str(one.why)} for one in done.unreadable],
        "failed": [{**_facts(run), "error": why} for run, why in done.failed],
        "specs": [{"folder": str(one.folder), "size": one.size} for one in done.specs],
        "freed": 0 if done.dry_run else sum(one.size for one in done.gone) + sum(one.size for one in done.specs),
    }


def _facts(run: Run) -> dict[str, object]:
    return {"id": run.start.id, "short": run.short, "folder": run.folder.name, "state": run.state}
