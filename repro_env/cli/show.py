"""`repro-env show`: what a spec holds, section by section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption, SpecArgument
from repro_env.model.errors import UsageError

_HELP = """\
Show what a spec holds, what it does not, and what of it is here.

\b
  repro-env show                           a page; long lists are cut, with a count
  repro-env show --all                     everything
  repro-env show --only distributions      one section, whole
  repro-env show --json                    all of it as one JSON object

Sections: environment, distributions, bundled, edited, outside, system, machine, code, data, variables, layers, blobs,
notes, unknown. Nothing that the spec names is opened, started or asked for: a stranger's spec can be looked at.
"""
SHOWN = 10
"""Entries of a list, unless all are asked for."""


def add(app: typer.Typer) -> None:
    app.command(name="show", help=_HELP, short_help=commands.COMMANDS["show"])(command)


def command(
    spec: SpecArgument = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Show this section alone, and all of it. Repeatable.", metavar="SECTION")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Cut no list.")] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.cli.page import Page
    from repro_env.cli.sections import SECTIONS
    from repro_env.flows import opened as words
    from repro_env.flows.show import opened, show

    chosen = _chosen(only or [], SECTIONS)
    which = words.opened(spec, Path.cwd(), tell=say.say)
    shown = show(which.spec, which.folder, *opened())
    if json:
        say.json_result({name: getattr(shown, name) for name in chosen} if only else shown)
        return
    page = Page.of_stdout(most=None if all_ or only else SHOWN)
    for name in chosen:
        before = len(page.lines)
        SECTIONS[name](shown, page)
        if only and len(page.lines) == before:
            page.heading(name, "nothing")
    page.print()
    if any(not blob.here for blob in shown.blobs) and (which.folder / "remote.json").is_file():
        say.say("next: repro-env rebuild, which takes what is missing from where the spec was pushed")
    elif any(not blob.here for blob in shown.blobs):
        say.say("next: copy the blobs/ folder of the capture beside the spec; without it not all can be rebuilt")
    else:
        say.say("next: repro-env check" if shown.environment.image == "in the store" else "next: repro-env rebuild")


def _chosen(only: list[str], sections: Mapping[str, Callable[..., Any]]) -> list[str]:
    for name in only:
        if name not in sections:
            raise UsageError("is no section", where=f"--only {name}", hint=f"there are {', '.join(sections)}")
    return [name for name in sections if not only or name in only]
