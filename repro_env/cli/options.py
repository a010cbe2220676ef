"""Options that several commands share, said the same way everywhere."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

SpecArgument = Annotated[
    str | None,
    typer.Argument(
        help="The spec, its folder, a packed FILE, or a registry's REF. Default: the nearest repro/spec.json upwards.",
        metavar="SPEC",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
RunsOption = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        help="The folder of the runs. Default: runs/ beside the nearest spec upwards.",
        metavar="DIR",
        show_default=False,
    ),
]


def again(runs: Path | None) -> str:
    """The option as it was given, for a next command that has to look at the same place."""
    return "" if runs is None else f" --runs {shlex.quote(str(runs))}"
