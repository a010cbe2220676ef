"""The commands by name, and the parser of command lines. Only the module of the called command is imported, so that it starts quickly."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from repro_env.cli.ui import messages, options
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
    "kernel": "Run kernels of Jupyter in the captured environment.",
    "verify": "Repeat a recorded run and compare the outputs.",
    "sensitivity": "Run a command with several seeds and report how metrics vary.",
    "lineage": "Show which run made a file and which runs used it.",
    "due": "Say which runs must be verified or trained again, and why.",
    "runs": "List, show, compare, tag and clean up recorded runs.",
    "report": "Write a small site about the runs of a project.",
    "init": "Write files for CI, pre-commit, editors and clusters.",
    "ci": "Check, rebuild, run, verify and push in a CI job.",
    "store": "Show and clean up the local store.",
    "doctor": "Check whether this machine can run commands, and suggest fixes.",
}
"""Name -> one line of help that fits 80 columns. The module of that name has the function `command`, or a Typer `group`."""

# Newer versions of Typer contain their own copy of click. Typer's public names refer to the copy in use.
COMPLETION = "_REPRO_ENV_COMPLETE"
"""The variable with which a shell asks for completions."""
_MEANT = {
    "run": "exec", "build": "rebuild", "create": "rebuild", "install": "rebuild", "freeze": "capture", "lock": "capture",
    "export": "capture", "snapshot": "capture", "save": "capture", "reproduce": "verify", "repeat": "verify", "status": "check",
    "compare": "runs compare", "list": "runs list", "ls": "runs list", "logs": "runs logs", "plot": "runs plot", "gc": "store gc",
    "info": "show", "inspect": "show", "pull": "runs pull", "bash": "shell",
    "jupyter": "kernel install", "notebook": "kernel install",
}  # fmt: skip
"""What other tools call a command -> the command here."""
Error: Any = typer.BadParameter.__mro__[2]
"""The base class of all errors that the parser raises for a wrong command line."""

Exit = typer.Exit


class _Ordered(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """The order of `COMMANDS`; Typer would list groups last."""
        return sorted(super().list_commands(ctx), key=list(COMMANDS).index)


def make(*names: str, lists: bool = False) -> Any:
    """Return the parser of the named commands; every command also has the common options.

    `lists`: the other commands are in its help and its hints, but cannot be used. So they are if a name is unknown.
    """
    lists = lists or not COMMANDS.keys() >= {*names}
    app = typer.Typer(
        name="repro-env",
        cls=_Ordered,
        help="Capture a Python environment, rebuild it file for file, and run and verify commands in it.",
        epilog="To start, activate the environment of your project and run `repro-env capture` in the project's directory.",
        no_args_is_help=True,
        add_completion=lists,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": []},  # `options.common` adds --help
    )
    app.callback()(_options)
    for name, text in COMMANDS.items():
        if not lists and name not in names:
            continue
        module: Any = importlib.import_module(f"repro_env.cli.{name}") if name in names else None
        if hasattr(module, "group"):
            app.add_typer(module.group, name=name, help=text)
        else:
            app.command(name, cls=getattr(module, "Command", None), short_help=text)(getattr(module, "command", _options))
    command = get_command(app)
    options.add_common(command)
    return command


def complete() -> None:
    """Answer a shell that completes a command line (`repro-env --install-completion`), and exit."""
    make(*COMMANDS, lists=True).main(prog_name="repro-env")


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


def usage_error(error: Any, name: str) -> UsageError:
    """The `UsageError` for an error of the parser."""
    message, context = error.format_message().strip().rstrip(".").replace("Value error, ", ""), getattr(error, "ctx", None)
    message = message[:1].lower() + message[1:]
    if name in _MEANT and name not in COMMANDS:
        return UsageError(f"no such command '{name}'", where="repro-env", hint=f"use `repro-env {_MEANT[name]}`")
    if context is None:  # the value of an option is missing
        command = f"repro-env {name}".strip()
        return UsageError(message, where=command, hint=f"for the options, run `{command} --help`")
    usage = " ".join(" ".join(context.command.collect_usage_pieces(context)).split())
    hint = f"usage: {context.command_path} {usage} (for the options, run `{context.command_path} --help`)"
    return UsageError(message, where=context.command_path, hint=hint)
