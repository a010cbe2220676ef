"""The commands by name. Only the module of the called command is imported, so that every command starts quickly."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from repro_env.cli.ui import messages
from repro_env.schema.errors import UsageError
from repro_env.version import __version__

COMMANDS = {
    "capture": "Capture a Python environment in a spec, file for file.",
    "check": "Compare the environment, the code and the data with the spec.",
    "show": "Show what a spec contains.",
    "diff": "Compare two environments.",
    "rebuild": "Build the exact image that a spec describes.",
    "image": "Verify that an image is intact and matches its spec.",
    "push": "Push the image, the spec and the bundled files to a registry.",
    "pack": "Write a spec and its files to one bundle file.",
    "exec": "Run a command in the captured environment and record the run.",
    "shell": "Open a shell in the captured environment.",
    "verify": "Repeat a recorded run and compare the outputs.",
    "sensitivity": "Run a command with several seeds and report how metrics vary.",
    "lineage": "Show which run made a file and which runs used it.",
    "runs": "List, show, compare, tag and clean up recorded runs.",
    "ci": "Check, rebuild, run, verify and push in a CI job.",
    "store": "Show and clean up the local store.",
    "doctor": "Check whether this machine can run commands, and suggest fixes.",
}
"""Name -> one line of help that fits 80 columns. The module of that name has the function `command`, or a Typer `group`."""

_TRANSPARENT = ("ci", "exec", "sensitivity", "shell", "verify")
"""Commands that run a command of the user, whose output would mix with a progress line."""

# Newer versions of Typer contain their own copy of click. Typer's public names refer to the copy in use.
_ParserError: Any = typer.BadParameter.__mro__[2]
"""The base class of all errors that the parser raises for a wrong command line."""

EPILOG = "To start, activate the environment of your project and run `repro-env capture` in the project's directory."


def application(*names: str) -> typer.Typer:
    """The Typer application. Only the named commands can be used; the others are listed in the help."""
    from typer.core import TyperGroup

    class Ordered(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            """The order of `COMMANDS`; Typer would list groups last."""
            return sorted(super().list_commands(ctx), key=list(COMMANDS).index)

    app = typer.Typer(
        name="repro-env",
        cls=Ordered,
        help="Capture a Python environment, rebuild it file for file, and run and verify commands in it.",
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": []},  # `options.common` adds --help
    )
    app.callback()(_options)
    for name, text in COMMANDS.items():
        module: Any = importlib.import_module(f"repro_env.cli.{name}") if name in names else None
        if hasattr(module, "group"):
            app.add_typer(module.group, name=name, help=text)
        else:
            app.command(name, cls=getattr(module, "Command", None), short_help=text)(getattr(module, "command", _options))
    return app


def parser(*names: str) -> Any:
    """The parser of `application(*names)`; every command also has the common options."""
    from typer.main import get_command

    from repro_env.cli.ui import options

    command = get_command(application(*names))
    options.add_common(command)
    return command


def _version(value: bool) -> None:
    if value:
        messages.result(f"repro-env {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The options before the command."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code. Raises `ReproEnvError`; `UsageError` for a wrong command line."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    command = parser(name)
    in_json, messages.Screen.json = messages.Screen.json, False  # `ci` runs other commands
    try:
        with (
            contextlib.nullcontext() if name in _TRANSPARENT else messages.say.command(name),
            command.make_context("repro-env", list(arguments)) as context,
        ):
            code = command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except _ParserError as error:
        if not (message := error.format_message()).startswith("Usage: "):
            raise _usage(error, name) from None
        messages.say.warn(message.rstrip("\n"))  # the help of a group that was called without a command
        return int(error.exit_code)
    finally:
        messages.Screen.json = in_json
    return code if isinstance(code, int) else 0


def parse(name: str, words: Sequence[str]) -> Any:
    """Parse the command line of a command without running it.

    Returns a context with `params`, the options by name, and `args`, the words after the options.
    `context.command.invoke(context)` runs the command. Raises `UsageError`.
    """
    group = parser(name)
    try:
        parent = group.make_context("repro-env", [name])
        return group.commands[name].make_context(name, list(words), parent=parent)
    except _ParserError as error:
        raise _usage(error, name) from None


def _usage(error: Any, name: str) -> UsageError:
    """The `UsageError` for an error of the parser."""
    message, context = error.format_message().strip().rstrip(".").replace("Value error, ", ""), getattr(error, "ctx", None)
    message = message[:1].lower() + message[1:]
    if context is None:  # the value of an option is missing
        command = f"repro-env {name}".strip()
        return UsageError(message, where=command, hint=f"for the options, run `{command} --help`")
    usage = " ".join(" ".join(context.command.collect_usage_pieces(context)).split())
    hint = f"usage: {context.command_path} {usage} (for the options, run `{context.command_path} --help`)"
    return UsageError(message, where=context.command_path, hint=hint)
