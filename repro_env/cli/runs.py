"""`repro-env runs`: list, show, get, rm; the rest is in modules of its own."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say, summary
from repro_env.cli.options import JsonOption, RunsOption, again
from repro_env.model.errors import ReproEnvError

if TYPE_CHECKING:
    from repro_env.catalog.index import Summary
    from repro_env.catalog.records import Run

_MORE = ("logs", "runscompare", "annotate", "keep", "lineage")
"""Modules with further commands below `runs`: each offers `add_below(runs)`."""
IdArgument = Annotated[str, typer.Argument(help="A short id, a beginning of one, or `latest`.", metavar="ID")]


def add(app: typer.Typer) -> None:
    below = typer.Typer(help=commands.COMMANDS["runs"], no_args_is_help=True)
    below.command(name="list", help="Every run, newest first.")(list_)
    below.command(name="show", help="One run: what ran, in what, how it ended, what it left.")(show)
    below.command(name="get", help="Copy outputs of a run into a folder, by their paths.")(get)
    below.command(name="rm", help="Remove runs with their outputs.")(rm)
    for name in _MORE:
        importlib.import_module(f"repro_env.cli.{name}").add_below(below)
    app.add_typer(below, name="runs")


def list_(
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only runs with this tag. May be given several times: with all of them.", metavar="TAG"),
    ] = None,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.runs import listed, where

    folder = where(_absolute(runs), Path.cwd())
    found = listed(folder, say.tell)
    wanted = set(tag or ())
    there, damaged = [one for one in found.runs if wanted <= set(one.tags or ())], found.unreadable
    if json:
        unreadable = [{"folder": str(one.folder), "error": str(one.why)} for one in damaged]
        say.json_result({"runs": [facts(run) for run in there], "unreadable": unreadable})
        return
    if there:
        header = ("ID", "WHEN (UTC)", "COMMAND", "STATE", "TIME", "OUTPUTS")
        tagged = ("TAGS",) if any(one.tags != () for one in there) else ()
        say.result(say.table([_row(run) for run in there], header=(*header, *tagged)))
    for one in damaged:
        say.say.warn(f"cannot be read: {one.why}")
    for run in found.runs:
        if run.tags is None:
            say.say.warn(f"its notes and tags cannot be read: {run.folder}")
    if there:
        say.say(f"next: repro-env runs show {there[0].short}{again(runs)}")
    else:
        following = f"runs list{again(runs)}" if found.runs else "exec COMMAND"
        say.say(f"no runs{' with these tags' * bool(wanted)} in {folder}; next: repro-env {following}")


def show(
    run_id: IdArgument = "latest",
    all_: Annotated[bool, typer.Option("--all", help="Show every metric, parameter and setting.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.catalog import annotation, verified
    from repro_env.cli import runpage

    run = _find(run_id, runs)
    said = annotation.of(run.folder)
    try:
        verdict = verified.last(run.folder)
    except ReproEnvError as error:  # it is no part of the record
        say.error(error)
        verdict = None
    if json:
        facts = {"folder": str(run.folder), "state": run.state, "intact": run.intact, "start": run.start, "end": run.end}
        say.json_result({**facts, "verified": verdict, "tags": list(annotation.tags(said)), "annotations": list(said)})
        return
    for line in runpage.lines(run, said, verdict, whole=all_):
        say.result(say.visible(line))
    if run.end is not None and run.end.outputs:
        say.say(f"next: repro-env runs get {run.short} --to DIR{again(runs)}")


def get(
    run_id: IdArgument = "latest",
    glob: Annotated[
        str | None,
        typer.Argument(
            help="Which outputs: a path, a name, a folder, or a pattern of those. Default: all.",
            metavar="GLOB",
            show_default=False,
        ),
    ] = None,
    to: Annotated[Path, typer.Option(help="Where to put them.", metavar="DIR", show_default="the current folder")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.flows import runs as story
    from repro_env.store.store import Store

    run = _find(run_id, runs)
    if run.state == "interrupted":
        story.settle(run, Store.open())
    made = story.get(run, glob, to.resolve(), force=force, tell=say.tell)
    if json:
        say.json_result({"files": [str(path) for path in made]})
        return
    for path in made:
        say.result(say.visible(str(path)))
    if run.state != "done":
        say.say(f"note: the run is {run.state}: these are the outputs so far")
    say.say(f"next: repro-env runs show {run.short}{again(runs)}")


def rm(
    run_ids: Annotated[list[str], typer.Argument(help="Short ids, beginnings of them, or `latest`.", metavar="ID")],
    force: Annotated[bool, typer.Option("--force", help="Remove a run that is still running, too.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.flows import runs as story

    gone = story.remove(story.where(_absolute(runs), Path.cwd()), run_ids, force=force)
    if json:
        say.json_result({"removed": [path.name for path in gone]})
        return
    for path in gone:
        say.result(f"removed {path.name}")
    say.say(f"next: repro-env runs list{again(runs)}")


def facts(run: Summary) -> dict[str, object]:
    """One run for `list --json`."""
    more = {"seconds": run.seconds, "outputs": run.outputs, "size": run.size, "seed": run.seed}
    return {**summary.facts(run), **more}


def _row(run: Summary) -> tuple[str, ...]:
    when = run.started[:19].replace("T", " ")
    words = shlex.join(run.command)
    words = words if len(words) <= 40 else words[:39] + "…"
    tags = "?" if run.tags is None else ", ".join(run.tags)
    if run.seconds is None:
        return (run.short, when, words, run.ended, "", "", tags)
    return (run.short, when, words, run.ended, f"{run.seconds:.1f} s", f"{run.outputs} ({say.size(run.size or 0)})", tags)


def _find(word: str, runs: Path | None) -> Run:
    from repro_env.catalog import records
    from repro_env.flows.runs import where

    return records.read(records.find(where(_absolute(runs), Path.cwd()), word))


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
