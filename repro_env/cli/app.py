"""Run a command line. What needs no parser is answered without one, so that it is there at once."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro_env.cli.ui import messages
from repro_env.version import __version__

HELP = Path(__file__).with_name("help.txt")
"""The help of `repro-env` as its parser prints it in 80 columns, without a last newline. `make reference` writes it."""

_TRANSPARENT = ("ci", "exec", "kernel", "sensitivity", "shell", "verify")
"""Commands that run a command of the user, whose output would mix with a progress line."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code. Raises `ReproEnvError`; `UsageError` for a wrong command line."""
    if (text := _answer(arguments)) is not None:
        messages.result(text)
        return 0
    from repro_env.cli import parser  # slow to import

    if parser.COMPLETION in os.environ:
        parser.complete()
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    name = next((word for word in arguments if not word.startswith("-")), "")
    command = parser.make(name, lists=arguments[:1] != [name])
    in_json, messages.Screen.json = messages.Screen.json, False  # `ci` runs other commands
    try:
        with (
            contextlib.nullcontext() if name in _TRANSPARENT else messages.say.command(name),
            command.make_context("repro-env", list(arguments)) as context,
        ):
            code = command.invoke(context)
    except parser.Exit as stop:
        return stop.exit_code
    except parser.Error as error:
        if not (message := error.format_message()).startswith("Usage: "):
            raise parser.usage_error(error, name) from None
        messages.say.warn(message.rstrip("\n"))  # the help of a group that was called without a command
        return int(error.exit_code)
    finally:
        messages.Screen.json = in_json
    return code if isinstance(code, int) else 0


def _answer(arguments: Sequence[str]) -> str | None:
    """Return what the parser would print for this command line, if that is known without a parser."""
    if list(arguments) == ["--version"]:
        return f"repro-env {__version__}"
    if list(arguments) in (["--help"], ["-h"]) and shutil.get_terminal_size().columns >= 80:
        return HELP.read_text(encoding="utf-8")
    return None


def parse(name: str, words: Sequence[str]) -> Any:
    """Parse the command line of a command without running it.

    Returns a context with `params`, the options by name, and `args`, the words after the options.
    `context.command.invoke(context)` runs the command. Raises `UsageError`.
    """
    from repro_env.cli import parser

    group = parser.make(name)
    try:
        parent = group.make_context("repro-env", [name])
        return group.commands[name].make_context(name, list(words), parent=parent)
    except parser.Error as error:
        raise parser.usage_error(error, name) from None
