"""Print differences: one line for each, those that can change numbers first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from repro_env.cli.ui.page import Page
from repro_env.compare.environments.difference import LEVELS, Difference, Level, NotCompared, mark
from repro_env.schema.messages import plural

SHOWN = 15
"""Differences of one level that are shown without --all."""
TITLES: Mapping[Level, str] = {
    "command": "command",
    "config": "config",
    "seeds": "random numbers",
    "numerics": "can change numbers",
    "distributions": "distributions",
    "interpreter": "interpreter",
    "system": "operating system",
    "files": "other files of the environment",
    "layout": "paths",
    "source": "code",
    "data": "data",
    "digests": "digests (they differ because of the differences above)",
    "observed": "observed only (not part of the image)",
    "end": "how the run ended",
}


def show(page: Page, differences: Iterable[Difference], missing: Sequence[NotCompared] = ()) -> None:
    """Add the differences to the page, by level, and then `missing`, what could not be compared."""
    by_level: dict[Level, list[Difference]] = {}
    for difference in differences:
        by_level.setdefault(difference.level, []).append(difference)
    for level in LEVELS:
        if level in by_level:
            page.heading(TITLES[level])
            page.table(
                [(f"{mark(item)} {item.what}" + (f" [{item.of}]" if item.of else ""), _text(item)) for item in by_level[level]]
            )
    if missing:
        page.heading("not compared")
        page.table([(f"? {entry.what}: {entry.why}",) for entry in missing])


def summary(differences: Iterable[Difference]) -> str:
    """`3 differences, 1 of them can change numbers`. Counts the differences that count and are not digests."""
    counted = [difference for difference in differences if difference.counts and difference.level != "digests"]
    numeric = sum(difference.level == "numerics" for difference in counted)
    text = plural(len(counted), "difference")
    moved = sum(difference.moved for difference in counted)
    if counted and moved == len(counted):
        return f"{text}, all because the environment has another prefix"
    if len(counted) == numeric == 1:
        return f"{text}, which can change numbers"
    parts = [f"{numeric:,} of them can change numbers"] if numeric else []
    parts += [f"{moved:,} because the environment has another prefix"] if moved else []
    return ", ".join([text, *parts])


def _text(difference: Difference) -> str:
    left, right = difference.left, difference.right
    value = f"{left} -> {right}" if left and right else left or right
    remarks = [difference.why] if difference.why else []
    if not difference.counts and difference.level == "numerics":
        remarks.append("a fact about the machine, not part of the image")
    return f"{value} ({'; '.join(remarks)})" if remarks and value else value or "; ".join(remarks)
