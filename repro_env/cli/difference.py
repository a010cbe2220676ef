"""Differences for people: one line each, what can change numbers first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from repro_env.cli.page import Page
from repro_env.verify.difference import LEVELS, Difference, Level, NotCompared

SHOWN = 15
"""Differences of one level, unless all are asked for."""
TITLES: Mapping[Level, str] = {
    "numerics": "can change numbers",
    "distributions": "distributions",
    "interpreter": "the interpreter",
    "system": "the operating system's part",
    "files": "other files of the environment",
    "layout": "where things lie",
    "source": "the code",
    "data": "the data",
    "digests": "what follows from the rest",
    "observed": "only seen: no image holds it",
}
_LONGEST = 60


def show(page: Page, found: Iterable[Difference], missing: Sequence[NotCompared] = ()) -> None:
    by_level: dict[Level, list[Difference]] = {}
    for one in found:
        by_level.setdefault(one.level, []).append(one)
    for level in LEVELS:
        if level in by_level:
            page.heading(TITLES[level])
            rows = [(f"{mark(one)} {_what(one)}", _text(one)) for one in by_level[level]]
            # One long path must not push what is said of all others to the right.
            width = max((len(what) for what, _ in rows if len(what) <= _LONGEST), default=0)
            page.table([(f"{what:<{width}}  {text}".rstrip(),) for what, text in rows], "--all shows them")
    if missing:
        page.heading("not compared")
        page.table([(f"? {one.what}: {one.why}",) for one in missing], "--all shows them")


def mark(one: Difference) -> str:
    """`+` is only right (now), `-` is only left (then), `~` is on both."""
    return "+" if not one.left and one.right else "-" if one.left and not one.right else "~"


def counted(found: Iterable[Difference]) -> str:
    """`3 differences, 1 of them can change numbers`: of those that count and follow from no other."""
    own = [one for one in found if one.counts and one.level != "digests"]
    numeric = sum(one.level == "numerics" for one in own)
    text = f"{len(own):,} difference{'s' * (len(own) != 1)}"
    moved = sum(one.moved for one in own)
    if own and moved == len(own):
        return f"{text}, all because the environment lies at another prefix"
    if len(own) == numeric == 1:
        return f"{text}, which can change numbers"
    parts = [f"{numeric:,} of them can change numbers"] if numeric else []
    parts += [f"{moved:,} because the environment lies at another prefix"] if moved else []
    return ", ".join([text, *parts])


def facts(found: Iterable[Difference]) -> list[dict[str, object]]:
    """For `--json`; the keys are a contract."""
    return [
        {
            "level": one.level,
            "what": one.what,
            "of": one.of,
            "left": one.left,
            "right": one.right,
            "why": one.why,
            "moved": one.moved,
            "counts": one.counts,
        }
        for one in found
    ]


def _what(one: Difference) -> str:
    return f"{one.what} [{one.of}]" if one.of else one.what


def _text(one: Difference) -> str:
    value = f"{one.left} -> {one.right}" if one.left and one.right else one.left or one.right
    notes = [one.why] if one.why else []
    if not one.counts and one.level == "numerics":
        notes.append("of the machine, in no image")
    return f"{value} ({'; '.join(notes)})" if notes and value else value or "; ".join(notes)
