"""Commands that split their words themselves: a part of them belongs to the user's own command."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

_OPTION = re.compile(r"( +-\S.*?)  +(\S.*)")
_WIDEST = 100
_BESIDE = 72
"""Columns from which on an option and its text stand beside each other."""


def show(text: str) -> None:
    """Print the help of a command that has no parser to print it, as wide as the terminal is, up to 100 columns."""
    import shutil

    from repro_env.cli import say

    say.result(fitted(text, min(shutil.get_terminal_size((_WIDEST, 0)).columns, _WIDEST)))


def fitted(text: str, width: int) -> str:
    """Paragraphs and the texts of options wrapped to `width` columns; indented lines (examples) stay as they are."""
    import textwrap

    done: list[str] = []
    paragraph: list[str] = []
    label = ""

    def flush() -> None:
        nonlocal label
        words = " ".join(paragraph)
        first, rest = label, "" if not label else " " * 29 if width >= _BESIDE else " " * 6
        if label and width < _BESIDE:
            done.append(label)
            first = rest
        if words:
            done.extend(
                textwrap.wrap(
                    words,
                    width,
                    initial_indent=f"{first:<{len(rest)}}",
                    subsequent_indent=rest,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
        paragraph.clear()
        label = ""

    for line in text.splitlines():
        option = _OPTION.fullmatch(line)
        deeper = bool(label) and line.startswith(" " * 8)
        if option:
            flush()
            label = option[1]
            paragraph.append(option[2])
        elif deeper or (line and line[0] != " "):
            paragraph.append(line.strip())
        else:
            flush()
            done.append(line)
    flush()
    return "\n".join(done)


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
