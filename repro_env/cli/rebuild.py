"""`repro-env rebuild`: its options. What they do is in `rebuilt`; a usual command line does not come here (`quick`)."""

from __future__ import annotations

from typing import Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import rebuilt
from repro_env.cli.options import JsonOption, SpecArgument


def add(app: typer.Typer) -> None:
    app.command(name="rebuild", help=commands.COMMANDS["rebuild"])(command)


def command(
    spec: SpecArgument = None,
    builder: Annotated[
        str, typer.Option(help="What makes the image: `direct` needs no container engine.", metavar="NAME")
    ] = "direct",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say where everything would come from, and change nothing.")] = False,
    json: JsonOption = False,
) -> None:
    rebuilt.run(spec=spec, builder=builder, dry_run=dry_run, json=json)
