"""Commands that split their words themselves: a part of them belongs to the user's own command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def add(app: Any, name: str, main: Callable[[Sequence[str]], int]) -> None:
    """Put a command into the Typer application: `main` gets its words as they are, and returns the exit code."""
    from typer.core import TyperCommand

    from repro_env.cli import app as commands

    class Untouched(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.args = list(args)
            return args

        def invoke(self, ctx: Any) -> int:
            return main(ctx.args)

    def command() -> None:
        """Never called: `Untouched.invoke` stands in for it."""

    app.command(name=name, cls=Untouched, help=commands.COMMANDS[name])(command)
