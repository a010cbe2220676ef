"""Options that several commands share."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import msgspec
import typer
from msgspec.structs import FieldInfo

from repro_env.cli.ui import messages
from repro_env.cli.ui.messages import Level
from repro_env.schema.errors import UsageError
from repro_env.schema.options import Option, options_of, parse_mount

S = TypeVar("S", bound=msgspec.Struct)

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


def argument(metavar: str, text: str, *, show_default: bool = False, **settings: Any) -> Any:
    """An argument of a command."""
    return typer.Argument(help=text, metavar=metavar, show_default=show_default, **settings)


def parse_path(text: str) -> Path:
    """The absolute path that an option names. Raises `UsageError` if the value is empty, as that of an unset variable."""
    if not text:
        raise UsageError("an option requires a path, but its value is empty", hint="check the variable that it came from")
    return Path(os.path.abspath(text))  # noqa: PTH100 - without `..`


def parse_mounts(texts: Sequence[str] | None, option: str = "--data") -> list[tuple[str, str]]:
    """The parts of each `SRC[:DST]` of an option."""
    return [parse_mount(option, text) for text in texts or ()]


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
AllOption = Annotated[bool, flag("--all", "Show complete lists. Default: the first entries of each list.")]
HtmlOption = Annotated[
    Path | None,
    value("FILE", "Also write the complete answer to FILE, as one HTML page that needs no other file.", parser=parse_path),
]
ByOption = Annotated[str, value("NAME", "Record this name as the author.")]
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


def options(kind: type[msgspec.Struct]) -> list[Any]:
    """The parser's options for the fields of a type."""

    def function(**_: object) -> None: ...

    declared = options_of(kind)
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **_typed(*declared[name])) for name in declared]
    )
    return parameters(function)


def shared(kind: type[msgspec.Struct], name: str) -> Any:
    """The option of a field, for another command."""
    return _typed(*options_of(kind)[name])["annotation"].__metadata__[0]


def _typed(field: FieldInfo, option: Option) -> dict[str, Any]:
    """The default and the annotation of the option of a field: None without a value on the command line."""
    name, kind, parse = f"--{field.encode_name}", field.type.__origin__, option.parse
    if not option.metavar:
        return {"default": False, "annotation": Annotated[bool, flag(name, option.help)]}
    if kind == Path | None:
        parse = parse_path
    kind = list[str] if field.default == () else str if parse else kind
    given = value(option.metavar, option.help, name, parser=parse, min=option.min, max=option.max)
    return {"default": None, "annotation": Annotated[Optional[kind], given]}  # noqa: UP045 - a union at run time


def read(kind: type[S], typed: Mapping[str, Any], **others: Any) -> S:
    """The value of a type with the options that were typed, and with `others`."""
    return kind(**others, **{name: typed[name] for name in options_of(kind) if typed[name] not in (None, ())})


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
