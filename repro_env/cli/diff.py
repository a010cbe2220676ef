"""`repro-env diff`: compare two environments."""

from __future__ import annotations

from typing import Annotated

import typer

from repro_env.api.diff import DiffResult, SideSummary, diff
from repro_env.cli.ui import differences, messages
from repro_env.cli.ui.options import AllOption, argument
from repro_env.cli.ui.page import Page


def command(
    left: Annotated[str, argument("A", "A spec or a live environment.")],
    right: Annotated[str, argument("B", "The spec or environment to compare with.")],
    all_: AllOption = False,
) -> None:
    """Compare two environments, and list the differences.

    \b
    A and B can each be:
      a spec                its directory, a bundle FILE, or a REF in a registry
      a live environment    its Python, its directory, or the word `live` for the active environment

    In the list, `-` marks what only A has, `+` what only B has, and `~` what differs (A -> B). Differences that can change
    numbers come first. Digests that differ because of them come last. Observed facts about the machines (GPU, CPU, kernel)
    are listed, but are not counted as differences.

    Code and data are compared if both A and B are specs. For a spec and a live environment, they are listed as not compared;
    `repro-env check` compares them.

    Exit code 0: everything that was captured is the same. 1: something differs, or could not be compared.
    """
    comparison = diff(left, right, tell=messages.say)
    if not messages.answer_in_json(comparison):
        _print(comparison, all_=all_)
    raise typer.Exit(0 if comparison.same else 1)


def _print(comparison: DiffResult, *, all_: bool) -> None:
    page = Page(most=None if all_ else differences.SHOWN)
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
    page.print()


def _side(side: SideSummary) -> str:
    return f"{side.name} ({side.kind}, spec {side.spec_digest[7:19]}, image {side.image_id[7:19]})"


def _equal_parts(comparison: DiffResult) -> str:
    left, right = comparison.left, comparison.right
    layers = f"{comparison.same_layers} of {max(left.layers, right.layers)} layers"
    distributions = f"{comparison.same_distributions} of {max(left.distributions, right.distributions)} distributions"
    return f"{layers} and {distributions} are the same"
