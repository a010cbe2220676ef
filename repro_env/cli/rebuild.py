"""`repro-env rebuild`: its options. What they do is in `rebuilt`; a usual command line does not come here (`quick`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import rebuilt
from repro_env.cli.options import JsonOption, SpecArgument


def add(app: typer.Typer) -> None:
    app.command(name="rebuild", help=commands.COMMANDS["rebuild"])(command)


def command(
    spec: SpecArgument = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="Send the image there instead of unpacking it here: oci:DIR[:TAG], docker-archive:FILE[:NAME], docker:[NAME], "
            "squashfs:FILE, or HOST/REPOSITORY:TAG. Default: unpack it in the store, for exec.",
            metavar="WHERE",
            show_default=False,
        ),
    ] = None,
    with_source: Annotated[
        bool,
        typer.Option("--with-source", help="With --output: add the captured code as last layer, which changes the image ID."),
    ] = False,
    frozen: Annotated[
        bool,
        typer.Option(
            "--frozen", help="With --with-source: add the captured code even if the code beside the spec differs from it."
        ),
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(
            help="With --output: start the image as this numeric user, which changes the image ID. Default: root.",
            metavar="UID[:GID]",
            show_default=False,
        ),
    ] = None,
    provenance: Annotated[
        Path | None,
        typer.Option(
            help="With --output: write what the image was made of (in-toto statement, SLSA provenance) to FILE.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    builder: Annotated[
        str,
        typer.Option(
            help="Build with `direct`, which needs no container engine, or with `docker`, which builds the Dockerfile without "
            "network and compares every file.",
            metavar="NAME",
        ),
    ] = "direct",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print where everything would come from, and change nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    rebuilt.run(
        spec=spec,
        output=output,
        with_source=with_source,
        frozen=frozen,
        user=user,
        provenance=provenance,
        builder=builder,
        dry_run=dry_run,
        json=json,
    )
