"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from repro_env.cli.ui import messages
from repro_env.cli.ui.messages import Level
from repro_env.schema.errors import UsageError

SPEC = (
    "a spec.json, its directory, a bundle FILE, or a REF in a registry. "
    "Default: the nearest repro/spec.json in this directory or a parent."
)


def value(metavar: str, text: str, *names: str, **settings: Any) -> Any:
    """An option with a value. The help text names the default. `names`: of the option, if not those of the parameter."""
    return typer.Option(*names, help=text, metavar=metavar, show_default=False, **settings)


def flag(name: str, text: str, **settings: Any) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, show_default=False, **settings)


def argument(metavar: str, text: str, *, show_default: bool = False) -> Any:
    """An argument of a command."""
    return typer.Argument(help=text, metavar=metavar, show_default=show_default)


def parse_path(text: str) -> Path:
    """The absolute path that an option names. Raises `UsageError` if the value is empty, as that of an unset variable."""
    if not text:
        raise UsageError("an option requires a path, but its value is empty", hint="check the variable that it came from")
    return Path(os.path.abspath(text))  # noqa: PTH100 - without `..`


def parse_mount(text: str, option: str) -> tuple[str, str]:
    """The parts of `SRC[:DST]`. An existing path that contains a colon is SRC alone."""
    source, colon, target = text.rpartition(":")
    if not colon or os.path.exists(text):  # noqa: PTH110
        source, target = text, ""
    if not source or (colon and target and not target.startswith("/")):
        hint = f"for example: {option} ./images:/data/images"
        raise UsageError(f'{option} must be SRC[:DST] with an absolute DST (got "{text}")', hint=hint)
    return source, target


def parse_mounts(texts: Sequence[str] | None, option: str = "--data") -> list[tuple[str, str]]:
    """The parts of each `SRC[:DST]` of an option."""
    return [parse_mount(text, option) for text in texts or ()]


def parse_variables(texts: Sequence[str] | None) -> dict[str, str | None]:
    """The values of `NAME=VALUE` by name; None for `NAME`, which passes the caller's value."""
    parts = [text.partition("=") for text in texts or ()]
    return {name: value if equals else None for name, equals, value in parts}


def parse_source(text: str) -> Path:
    """The directory of --source without symlinks. Raises `UsageError` if it is not a directory."""
    source = parse_path(text)
    if not source.is_dir():
        raise UsageError(f'--source must be a directory (got "{source}")', hint="name the directory of the code")
    return source.resolve()


SpecArgument = Annotated[str | None, argument("SPEC", f"{SPEC[0].upper()}{SPEC[1:]}")]
SpecOption = Annotated[str | None, value("SPEC", f"Use this spec: {SPEC}")]
RunArgument = Annotated[str, argument("ID", "The short ID of a run, the beginning of its ID, or `latest`.", show_default=True)]
RunsOption = Annotated[
    Path | None,
    value(
        "DIR",
        "Use the runs in this directory. Default: runs/ next to the nearest spec, in this directory or a parent.",
        parser=parse_path,
    ),
]
SourceOption = Annotated[
    Path | None,
    value("DIR", "Use the code in this directory. Default: the directory that holds the spec's directory.", parser=parse_source),
]
EnvOption = Annotated[
    list[str] | None,
    value("NAME[=VALUE]", "Set a variable. NAME alone passes the value from your shell. Only the name is recorded. Repeatable."),
]
EnvFileOption = Annotated[Path | None, value("FILE", "Set variables from the lines NAME=VALUE of this file.", parser=parse_path)]
NetworkOption = Annotated[bool, flag("--network", "Allow access to the network.")]
AllOption = Annotated[bool, flag("--all", "Show complete lists. Default: the first entries of each list.")]
DryRunOption = Annotated[bool, flag("--dry-run", "Print what the command would do; change nothing.")]


def runs_option(runs: Path | None) -> str:
    """The text ` --runs DIR` for a suggested command; empty if the option was not given."""
    return "" if runs is None else f" --runs {shlex.quote(str(runs))}"


def _apply(level: Level) -> Callable[[bool], None]:
    def apply(active: bool) -> None:
        if active:
            messages.set_level(level)

    return apply


def _show_help(context: typer.Context, requested: bool) -> None:
    if requested:
        messages.result(context.get_help())
        raise typer.Exit


def _set_json(requested: bool) -> None:
    messages.Screen.json = messages.Screen.json or requested


def common(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.", callback=_set_json)] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the result, warnings and errors.", callback=_apply("quiet"))
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more details.", callback=_apply("verbose"))] = False,
    help_: Annotated[
        bool, typer.Option("--help", "-h", help="Show this message and exit.", callback=_show_help, is_eager=True)
    ] = False,
) -> None:
    """Declare the options that every command has. Groups and `shell` have no answer, and no --json."""


def parameters(function: Callable[..., None]) -> list[Any]:
    """The parser's options for the parameters of a function."""
    from typer.main import get_command

    application = typer.Typer(add_completion=False)
    application.command()(function)
    return get_command(application).params


def add_common(command: Any) -> None:
    """Add the common options to a command and to all its subcommands."""
    options = parameters(common)
    for option in options:
        option.expose_value = False
    _add(command, options)


def _add(command: Any, options: Sequence[Any]) -> None:
    subcommands = getattr(command, "commands", {})
    command.params += options if not subcommands and getattr(command, "has_answer", True) else options[1:]
    for subcommand in subcommands.values():
        _add(subcommand, options)
