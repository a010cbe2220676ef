"""`repro-env diff`: compare two environments."""

from __future__ import annotations

import functools
import shlex
from typing import Annotated

import typer

from repro_env.api.diff import DiffResult, SideSummary, diff
from repro_env.cli.ui import differences, messages
from repro_env.cli.ui.options import AllOption, HtmlOption, argument
from repro_env.cli.ui.page import Page, save


def command(
    left: Annotated[str, argument("A", "A spec or a live environment.")],
    right: Annotated[str, argument("B", "The spec or environment to compare with.")],
    all_: AllOption = False,
    html: HtmlOption = None,
) -> None:
    """Compare two environments, and list the differences.

    \b
    A and B can each be:
      a spec                its directory, a bundle FILE, or a REF in a registry
      a live environment    its Python, its directory, or the word `live` for the active environment

    In the list, `-` marks what only A has, `+` what only B has, and `~` what differs (A -> B). Differences that can change
    numbers come first. Observed facts about the machines (GPU, CPU, kernel) do not count.

    Code and data are compared if A and B are specs; for a live environment, use `repro-env check`.

    Exit code 0: all that was captured is the same. 1: something differs, or could not be compared.
    """
    comparison = diff(left, right, tell=messages.say)
    show = functools.partial(_show, comparison)
    save(html, f"{left} and {right}", show, [shlex.join(["repro-env", "diff", left, right])])
    if not messages.answer_in_json(comparison):
        page = Page(most=None if all_ else differences.SHOWN)
        show(page)
        page.print()
    raise typer.Exit(0 if comparison.same else 1)


def _show(comparison: DiffResult, page: Page) -> None:
    page.row("A", _side(comparison.left), indent=0)
    page.row("B", _side(comparison.right), indent=0)
    if comparison.same:
        page.verdict("same", _equal_parts(comparison), "green")
    elif not any(difference.counts for difference in comparison.differences):
        page.verdict(
            "not compared", f"no difference was found, but something was not compared; {_equal_parts(comparison)}", "red"
        )
    else:
        page.verdict("different", f"{differences.summary(comparison.differences)}; {_equal_parts(comparison)}", "red")
    differences.show(page, comparison.differences, comparison.not_compared)


def _side(side: SideSummary) -> str:
    return f"{side.name} ({side.kind}, spec {side.spec_digest[7:19]}, image {side.image_id[7:19]})"


def _equal_parts(comparison: DiffResult) -> str:
    left, right = comparison.left, comparison.right
    layers = f"{comparison.same_layers} of {max(left.layers, right.layers)} layers"
    distributions = f"{comparison.same_distributions} of {max(left.distributions, right.distributions)} distributions"
    return f"{layers} and {distributions} are the same"
