"""`repro-env runs note`, `tag` and `untag`: annotate a run. The record of the run is not changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli.ui import messages
from repro_env.cli.ui.options import JsonOption, RunArgument, RunsOption, find_run, runs_option, value

_By = Annotated[str, value("NAME", "Record this name as the author.")]
_Tags = Annotated[
    list[str],
    typer.Argument(
        help="A tag: up to 64 of the characters a to z, 0 to 9 and . _ / + -. The first and the last are a letter or digit.",
        metavar="TAG",
    ),
]


def add_below(runs: typer.Typer) -> None:
    runs.command(name="note", help="Add a note to a run, with the current time. Notes are never overwritten.")(note)
    runs.command(name="tag", help="Add tags to a run. `runs gc` never removes a run that has a tag.")(tag)
    runs.command(name="untag", help="Remove tags from a run. Removed tags stay in the history.")(untag)


def note(
    run_id: RunArgument,
    words: Annotated[list[str], typer.Argument(help="The text of the note.", metavar="TEXT")],
    decision: Annotated[bool, typer.Option("--decision", help="Mark the note as a decision.")] = False,
    by: _By = "",
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.api import annotate

    directory = find_run(run_id, runs)
    annotation = annotate.note(directory, " ".join(words), decision=decision, by=by)
    if json:
        messages.json_result({"run": directory.name, "annotation": annotation})
        return
    messages.result(f"added a {annotation.kind} to {directory.name} at {annotation.written}")
    messages.say(f"next: repro-env runs show {run_id}{runs_option(runs)}")


def tag(run_id: RunArgument, tags: _Tags, by: _By = "", runs: RunsOption = None, json: JsonOption = False) -> None:
    from repro_env.api import annotate

    directory = find_run(run_id, runs)
    _print(directory, annotate.tag(directory, tags, by=by), runs, json=json)


def untag(run_id: RunArgument, tags: _Tags, by: _By = "", runs: RunsOption = None, json: JsonOption = False) -> None:
    from repro_env.api import annotate

    directory = find_run(run_id, runs)
    _print(directory, annotate.untag(directory, tags, by=by), runs, json=json)


def _print(directory: Path, tags: tuple[str, ...], runs: Path | None, *, json: bool) -> None:
    """Print the tags that the run has now."""
    if json:
        messages.json_result({"run": directory.name, "tags": list(tags)})
        return
    messages.result(f"{directory.name}: {', '.join(tags) or 'no tags'}")
    messages.say(f"next: repro-env runs list{runs_option(runs)}")
