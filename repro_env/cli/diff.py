"""`repro-env diff`: two environments, and in what they differ."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption

if TYPE_CHECKING:
    from repro_env.flows.diff import Diffed, Named

_HELP = """\
Say in what two environments differ, what can change results first.

A and B are each one of: a spec (its folder, a packed FILE, a registry's REF); a live environment (its python, its
folder, or the word `live` for the active one); an image of the store (its ID, or the beginning of one).

Lines begin with `-` for what only A has, `+` for what only B has, `~` for what both have otherwise. What follows from
the rest (layers, digests) comes last, then what was only seen of the machines (GPU, CPU, kernel): that is in no image.

Exit code 0: the same environment, code and data, as far as both sides hold them. 1: they differ.
"""


def add(app: typer.Typer) -> None:
    app.command(name="diff", help=_HELP, short_help=commands.COMMANDS["diff"])(command)


def command(
    left: Annotated[str, typer.Argument(help="A spec, a live environment, or an image.", metavar="A")],
    right: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    all_: Annotated[bool, typer.Option("--all", help="Show every difference, however many there are.")] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.diff import diff
    from repro_env.store.store import Store

    found = diff(left, right, Path.cwd(), dict(os.environ), store=Store.open(), tell=say.say)
    if json:
        say.json_result(_facts(found))
    else:
        _tell(found, all_=all_)
    raise typer.Exit(0 if found.same else 1)


def _facts(found: Diffed) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    from repro_env.cli import difference

    return {
        "same": found.same,
        "left": found.left,
        "right": found.right,
        "differences": difference.facts(found.differences),
        "same_layers": found.layers,
        "same_distributions": found.distributions,
    }


def _tell(found: Diffed, *, all_: bool) -> None:
    from repro_env.cli import difference
    from repro_env.cli.page import Page

    page = Page.of_stdout(most=None if all_ else difference.SHOWN)
    page.row("A", _side(found.left), indent=0)
    page.row("B", _side(found.right), indent=0)
    if found.same:
        page.verdict("same", _equal(found), "green")
    else:
        page.verdict("different", f"{difference.counted(found.differences)}; {_equal(found)}", "red")
    difference.show(page, found.differences)
    page.print()


def _side(one: Named) -> str:
    return f"{one.name} ({one.kind}, spec {one.spec_digest[7:19]}, image {one.image_id[7:19]})"


def _equal(found: Diffed) -> str:
    layers = f"{found.layers} of {max(found.left.layers, found.right.layers)} layers"
    if found.left.distributions is None or found.right.distributions is None:
        return f"{layers} are the same"
    return f"{layers} and {found.distributions} of {max(found.left.distributions, found.right.distributions)} distributions are the same"
