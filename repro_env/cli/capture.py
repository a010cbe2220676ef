"""`repro-env capture`: its options. What they do is in `captured`; a usual command line does not come here (`quick`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import captured
from repro_env.cli.options import JsonOption


def add(app: typer.Typer) -> None:
    app.command(name="capture", help=commands.COMMANDS["capture"])(command)


def command(
    python: Annotated[
        str | None,
        typer.Option(
            help="The environment's python, or its directory. Default: $VIRTUAL_ENV, $CONDA_PREFIX, $UV_PROJECT_ENVIRONMENT, the "
            "project's .venv, then python3 on PATH.",
            show_default=False,
            metavar="PATH",
        ),
    ] = None,
    source: Annotated[
        Path, typer.Option(help="The code to capture with it.", metavar="DIR", show_default="this folder")
    ] = Path(),
    include: Annotated[
        list[str] | None,
        typer.Option(help="Put files that would be left out (git-ignored, say) into the source after all.", metavar="GLOB"),
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Leave files out of the source.", metavar="GLOB")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data that runs need: fingerprinted now, expected again at `exec --data`.", metavar="SRC[:DST]"),
    ] = None,
    output: Annotated[Path, typer.Option(help="The folder to write.", metavar="DIR")] = Path("repro"),
    base: Annotated[
        str,
        typer.Option(
            help="Where the operating system comes from: `host` cuts it from this machine, else an image of a registry.",
            metavar="host|REF",
        ),
    ] = "host",
    keep_base: Annotated[
        bool, typer.Option("--keep-base", help="Carry a copy of that image: tags and images get deleted.")
    ] = False,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with", help="A program, package or folder of this machine to have inside too, e.g. git.", metavar="PROGRAM"
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="Hold this variable's present value and set it in every run.", metavar="NAME"),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="The master seed of runs, up to 4294967295.", min=0, max=2**32 - 1, metavar="N", show_default="0")
    ] = 0,
    not_secret: Annotated[
        list[str] | None,
        typer.Option(
            "--not-secret", help="Carry files that look as if they held a secret: you say that they hold none.", metavar="GLOB"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    captured.run(
        python=python,
        source=source,
        include=include,
        exclude=exclude,
        data=data,
        output=output,
        base=base,
        keep_base=keep_base,
        with_=with_,
        env=env,
        seed=seed,
        not_secret=not_secret,
        json=json,
    )
