"""The commands by name. Only the one that is called is imported, so that none pays for another's start."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from repro_env import __version__
from repro_env.model.errors import UsageError

COMMANDS = {
    "capture": "Write the spec of a live environment, file for file.",
    "check": "Compare what is here with the spec: has anything changed?",
    "show": "Show what a spec holds, and what it does not.",
    "diff": "Say in what two environments differ.",
    "rebuild": "Make the exact image that a spec describes, or say why not.",
    "image": "Verify an image, whoever made it: is it what it says?",
    "push": "Send image, spec and what it carries to a registry.",
    "pack": "Write a spec and what it needs as one file.",
    "exec": "Run a command in the captured environment, and record it.",
    "shell": "Open a shell in the captured environment.",
    "verify": "Run a recorded run again: what is the same, at which level?",
    "sensitivity": "Run a command with several seeds: how far do numbers move?",
    "lineage": "Say which run made a file, and what came of it.",
    "runs": "List, show, compare, tag and clean up recorded runs.",
    "ci": "Check, rebuild, run, verify and push in a CI job.",
    "store": "Show what is kept on this machine, and clean it up.",
    "doctor": "Try all that a run needs here, and name the fixes.",
}
"""Name -> one line of help, that fits 80 columns. Each lives in the module of its name and offers `add(app)`."""

EPILOG = "Start with `repro-env capture` in your project folder, with its environment active."


def application(wanted: str | None) -> typer.Typer:
    """The Typer application, with the wanted command alone when it is one of ours, else with all."""
    from typer.core import TyperGroup

    class Ordered(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            """As in `COMMANDS`: Typer would put groups last."""
            return sorted(super().list_commands(ctx), key=list(COMMANDS).index)

    app = typer.Typer(
        name="repro-env",
        cls=Ordered,
        help="The rebuilt environment is the captured one, file for file, or the command fails and says why.",
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        importlib.import_module(f"repro_env.cli.{name}").add(app)
    return app


def parser(wanted: str | None) -> Any:
    """The commands as the option parser has them, each with the options that all have."""
    from typer.main import get_command

    from repro_env.cli import options

    command = get_command(application(wanted))
    options.add_levels(command)
    return command


def _version(value: bool) -> None:
    if value:
        from repro_env.cli import say

        say.result(f"repro-env {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before every command."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code; our own errors pass through to the caller."""
    # Typer brings a click of its own from some version on; its public names lead to the one that is in use.
    click_exception: Any = typer.BadParameter.__mro__[2]
    command = parser(arguments[0] if arguments else None)
    try:
        result = command.main(list(arguments), prog_name="repro-env", standalone_mode=False)
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return 130
    except click_exception as error:
        from repro_env.cli import say

        if (said := error.format_message()).startswith("Usage: "):  # a group without a command: its help
            say.say.warn(said.rstrip("\n"))
        else:
            say.error(_usage(said, getattr(error, "ctx", None)))
        return int(error.exit_code)
    return result if isinstance(result, int) else 0


def _usage(said: str, context: Any) -> UsageError:
    """What the parser says of a command line, as every other error of ours: what, where, what next."""
    said = said.strip().rstrip(".")
    if context is None:
        return UsageError(said, where="repro-env", hint="`repro-env --help` shows the commands")
    usage = " ".join(" ".join(context.command.collect_usage_pieces(context)).split())
    hint = f"usage: {context.command_path} {usage}; `{context.command_path} --help` says more"
    return UsageError(said[:1].lower() + said[1:], where=context.command_path, hint=hint)
