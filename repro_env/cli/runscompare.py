"""`repro-env runs compare`: two recorded runs, and in what they differ."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import say
from repro_env.cli.options import JsonOption, RunsOption

if TYPE_CHECKING:
    from repro_env.catalog.records import Run
    from repro_env.cli.page import Page
    from repro_env.flows.runscompare import Compared
    from repro_env.model.run import Metric
    from repro_env.verify import divergence
    from repro_env.verify.runs import Measured, Outputs, Part

_HELP = """\
Say in what two recorded runs differ: command, recipe, seeds, settings in force, code, data, environment, metrics, outputs.

A and B are each a short id, a beginning of one, `latest`, or the folder of a run. Nothing is run: outputs are compared by
the digests in the records. They are paired by their paths, then by their paths without dates, times, process numbers,
hosts and counters.

Exit code 0: the outputs are the same, byte for byte. 1: they differ, or there are none to compare.
"""
_TITLES: dict[Part, str] = {
    "command": "what was asked",
    "recipe": "the recipe",
    "seeds": "random numbers",
    "numbers": "how numbers are computed",
    "machine": "the machine",
    "end": "how it ended",
}
_SHOWN = 15
_MORE = "--all shows them"
_LONG = 60
"""Characters of a value, unless all is asked for."""


def add_below(runs: typer.Typer) -> None:
    runs.command(name="compare", help=_HELP, short_help="Say in what two recorded runs differ.")(command)


def command(
    left: Annotated[str, typer.Argument(help="A run.", metavar="A")],
    right: Annotated[str, typer.Argument(help="Another one.", metavar="B")],
    all_: Annotated[bool, typer.Option("--all", help="Show every difference, and metrics that are the same.")] = False,
    runs: RunsOption = None,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.runscompare import compared
    from repro_env.store.store import Store

    folder = None if runs is None else runs.absolute()
    found = compared((left, right), folder, Path.cwd(), Store.open())
    if json:
        say.json_result(_facts(found))
    else:
        _tell(found, whole=all_)
    raise typer.Exit(0 if found.same else 1)


def _facts(found: Compared) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    from repro_env.cli import difference

    return {
        "same": found.same,
        "left": _run(found.left, found.tags[0]),
        "right": _run(found.right, found.tags[1]),
        "records": list(found.facts),
        "differences": difference.facts(found.differences),
        "not_compared": [{"what": one.what, "why": one.why} for one in found.missing],
        "metrics": [
            {"name": one.name, "file": one.file, "left": one.left, "right": one.right, "same": one.same, "change": one.change}
            for one in found.metrics
        ],
        "outputs": {
            "same": [[one.left, one.right] for one in found.outputs.pairs if one.same],
            "different": [[one.left, one.right] for one in found.outputs.pairs if not one.same],
            "missing": list(found.outputs.missing),
            "new": list(found.outputs.new),
            "unread": list(found.outputs.unread),
        },
        "trace": None if found.steps is None else {"equal": found.steps.equal, "compared": found.steps},
    }


def _run(run: Run, tags: tuple[str, ...]) -> dict[str, object]:
    return {
        "id": run.start.id,
        "folder": str(run.folder),
        "state": run.state,
        "started": run.start.started,
        "seconds": None if run.end is None else run.end.seconds,
        "tags": list(tags),
    }


def _tell(found: Compared, *, whole: bool) -> None:
    from repro_env.cli import difference
    from repro_env.cli.page import Page

    page = Page.of_stdout(most=None if whole else _SHOWN)
    page.row("A", _named(found.left, found.tags[0]), indent=0)
    page.row("B", _named(found.right, found.tags[1]), indent=0)
    if found.same:
        page.verdict("same", _counted(found.outputs), "green")
    else:
        page.verdict("different", _counted(found.outputs), "red")
    for part, title in _TITLES.items():
        facts = [one for one in found.facts if one.part == part]
        if facts:
            page.heading(title)
            rows = [(one.what, _change_of(one.left, one.right, whole=whole), one.of) for one in facts]
            page.table(rows, _MORE)
    difference.show(page, found.differences, found.missing)
    _metrics(page, found.metrics, whole=whole)
    _steps(page, found.steps)
    _outputs(page, found.outputs)
    page.print()


def _change_of(left: str, right: str, *, whole: bool) -> str:
    """Long values are cut, but never where that would hide in what they differ."""
    said = [text or "(not said)" for text in (left, right)]
    short = [text if len(text) <= _LONG else f"{text[:_LONG]}…" for text in said]
    return " -> ".join(said if whole or short[0] == short[1] else short)


def _named(run: Run, tags: tuple[str, ...]) -> str:
    seconds = "" if run.end is None else f", {run.end.seconds:.1f} s"
    about = f"{run.start.started[:19].replace('T', ' ')}{seconds}"
    return f"{run.short} ({about}{''.join(f', {tag}' for tag in tags)})  {shlex.join(run.start.command)}"


def _counted(outputs: Outputs) -> str:
    if not outputs.pairs and not (outputs.missing or outputs.new or outputs.unread):
        return "there are no outputs to compare"
    same = sum(one.same for one in outputs.pairs)
    parts = [f"{same:,} of {len(outputs.pairs):,} outputs that both have are the same, byte for byte"]
    parts += [f"{len(outputs.missing):,} only of A"] if outputs.missing else []
    parts += [f"{len(outputs.new):,} only of B"] if outputs.new else []
    parts += [f"{len(outputs.unread):,} were not read"] if outputs.unread else []
    return ", ".join(parts)


def _metrics(page: Page, found: tuple[Measured, ...], *, whole: bool) -> None:
    if not found:
        return
    same = sum(one.same for one in found)
    page.heading("metrics", f"{same:,} of {len(found):,} the same; the last value of each, and how many there are")
    rows = [
        (one.name, _last(one.left), _last(one.right), "same" if one.same else _change(one), one.file)
        for one in found
        if whole or not one.same
    ]
    if rows:
        page.table([("NAME", "A", "B", "B - A", "FILE"), *rows], _MORE)


def _last(one: Metric | None) -> str:
    from repro_env.cli.runpage import number

    return "-" if one is None else f"{number(one.last)} ({one.count:,})"


def _change(one: Measured) -> str:
    """Six digits; numbers that are too near for these are told as they are."""
    if one.left is None or one.right is None:
        return ""
    if one.change is None:
        return "no number"
    return f"{one.change:+.6g}" if one.change else "+0, others before it differ"


def _steps(page: Page, found: divergence.Compared | None) -> None:
    if found is None:
        return
    from repro_env.verify.divergence import sentence

    page.heading("steps of training", f"compared: losses of {found.losses:,}, digests of all weights {found.digests:,}")
    rows = [(f"~ {sentence(one)}",) for one in found.first] + [(f"? {line}",) for line in found.missing]
    page.table(rows or [("= no step differs" if found.equal else "? nothing was compared",)], _MORE)


def _outputs(page: Page, found: Outputs) -> None:
    rows = [("~", one.left if one.left == one.right else f"{one.left} -> {one.right}") for one in found.pairs if not one.same]
    rows += [("-", path) for path in found.missing]
    rows += [("+", path) for path in found.new]
    rows += [("?", line) for line in found.unread]
    if rows:
        page.heading("outputs")
        page.table(rows, _MORE)
