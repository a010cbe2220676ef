"""`repro-env runs logs`: what the command of a run printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import say
from repro_env.cli.options import JsonOption, RunsOption


def add_below(runs: typer.Typer) -> None:
    runs.command(name="logs", help="Print what the command of a run printed: its stdout to stdout, its stderr to stderr.")(logs)


def logs(
    run_id: Annotated[str, typer.Argument(help="A run: a short id, a beginning of one, or `latest`.", metavar="ID")] = "latest",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing until the run is over.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.catalog import records
    from repro_env.flows import logs as story
    from repro_env.flows.runs import where
    from repro_env.run.console import STDERR

    folder = records.find(where(None if runs is None else runs.absolute(), Path.cwd()), run_id)
    lines = story.printed(folder, follow=follow)
    if json:
        found: dict[str, list[str]] = {}
        for name, line in lines:
            found.setdefault(name, []).append(line)
        say.json_result({"run": folder.name, "logs": found})
        return
    for name, line in lines:
        (say.say if name == STDERR else say.result)(line)
