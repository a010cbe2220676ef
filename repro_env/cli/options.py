"""Options that several commands share, said the same way everywhere."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from repro_env.cli import say
from repro_env.cli.say import Level

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


def _apply(level: Level) -> Callable[[bool], None]:
    def apply(given: bool) -> None:
        if given:
            say.set_level(level)

    return apply


def add_levels(command: Any) -> None:
    """Give --quiet and --verbose to a command of the parser and to all commands below it."""
    from typer.main import get_command

    def template(
        quiet: Annotated[
            bool, typer.Option("--quiet", "-q", help="Print only the result, warnings and errors.", callback=_apply("quiet"))
        ] = False,
        verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print details too.", callback=_apply("verbose"))] = False,
    ) -> None:
        """Never called: its options are those of every command."""

    application = typer.Typer(add_completion=False)
    application.command()(template)
    _add(command, get_command(application).params)


def _add(command: Any, options: Sequence[Any]) -> None:
    for option in options:
        option.expose_value = False
    command.params += options
    for below in getattr(command, "commands", {}).values():
        _add(below, options)
