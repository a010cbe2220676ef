"""`repro-env runs note`, `tag`, `untag`: what people say of a run. Its record stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import say
from repro_env.cli.options import JsonOption, RunsOption, again

_Run = Annotated[str, typer.Argument(help="A run: a short id, a beginning of one, or `latest`.", metavar="ID")]
_By = Annotated[str, typer.Option("--by", help="Who says so: a name, kept with it.", metavar="NAME", show_default=False)]
_Tags = Annotated[list[str], typer.Argument(help="Up to 64 letters (a to z), digits and . _ / + - each.", metavar="TAG")]


def add_below(runs: typer.Typer) -> None:
    runs.command(name="note", help="Write down something about a run, with its time. Nothing is ever overwritten.")(note)
    runs.command(name="tag", help="Put tags on a run. A run with a tag is never removed by `runs gc`.")(tag)
    runs.command(name="untag", help="Take tags off a run; that it had them stays in its history.")(untag)


def note(
    run_id: _Run,
    words: Annotated[list[str], typer.Argument(help="The note.", metavar="TEXT")],
    decision: Annotated[bool, typer.Option("--decision", help="It is a decision: shown as one.")] = False,
    by: _By = "",
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.flows import annotate

    folder = _folder(run_id, runs)
    said = annotate.note(folder, " ".join(words), decision=decision, by=by)
    if json:
        say.json_result({"run": folder.name, "annotation": said})
        return
    say.result(f"{said.kind} of {folder.name}, {said.written}")
    say.say(f"next: repro-env runs show {run_id}{again(runs)}")


def tag(run_id: _Run, tags: _Tags, by: _By = "", runs: RunsOption = None, json: JsonOption = False) -> None:
    from repro_env.flows import annotate

    folder = _folder(run_id, runs)
    _told(folder, annotate.tag(folder, tags, by=by), runs, json=json)


def untag(run_id: _Run, tags: _Tags, by: _By = "", runs: RunsOption = None, json: JsonOption = False) -> None:
    from repro_env.flows import annotate

    folder = _folder(run_id, runs)
    _told(folder, annotate.untag(folder, tags, by=by), runs, json=json)


def _told(folder: Path, tags: tuple[str, ...], runs: Path | None, *, json: bool) -> None:
    if json:
        say.json_result({"run": folder.name, "tags": list(tags)})
        return
    say.result(f"{folder.name}: {', '.join(tags) or 'no tags'}")
    say.say(f"next: repro-env runs list{again(runs)}")


def _folder(word: str, runs: Path | None) -> Path:
    from repro_env.catalog import records
    from repro_env.flows.runs import where

    return records.find(where(None if runs is None else runs.absolute(), Path.cwd()), word)
