"""The page about the history of a file or a run (`repro-env lineage`)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from repro_env.cli.ui import messages, runpage
from repro_env.cli.ui.page import Page
from repro_env.pages.graph import Graph, Node
from repro_env.runs.records import ids
from repro_env.schema.messages import plural, shorten

if TYPE_CHECKING:
    from repro_env.api.lineage import Answer
    from repro_env.runs.lineage.families import Family, Relative, Use
    from repro_env.runs.records.records import Run

_SHOWN = 20
"""Entries of a list that are shown without --all."""


def new(*, complete: bool) -> Page:
    """An empty page. `complete`: do not shorten lists."""
    return Page(most=None if complete else _SHOWN)


def show(answer: Answer, page: Page) -> None:
    """Add the answer to the page."""
    if answer.file is not None:
        page.row("file", f"{answer.file} ({messages.size(answer.size or 0)})", indent=0)
    page.row("sha256", answer.digest.removeprefix("sha256:"), indent=0)
    duplicates = answer.origins[1:]
    if answer.origins:
        page.row("made by", _origin(answer.origins[0]), indent=0)
    elif answer.digest and not answer.known:
        _unknown(answer, page)
    if duplicates:
        page.row("also made by", f"{plural(len(duplicates), 'other run')}, byte for byte", indent=0)
        page.table([(*runpage.columns(origin.run.start), _origin(origin)) for origin in duplicates])
    _claims(answer, page)
    if answer.run is not None:
        _run(answer, page)
    if answer.uses:
        page.heading("used by", f"{len(answer.uses)}")
        page.table([(*runpage.columns(use.run.start), _use(use)) for use in answer.uses])
    if answer.family is not None:
        if page.is_file and answer.run is not None and (answer.family.parents or answer.family.children):
            page.heading("lineage", "parents on the left, children on the right")
            page.graph(_graph(answer.run, answer.family))
        _relatives(page, "parents", answer.family.parents, "no known parent")
        _relatives(page, "children", answer.family.children, "no known child")
        if answer.family.truncated:
            page.text("and more: there are too many related runs to show all of them")


def _unknown(answer: Answer, page: Page) -> None:
    searched = f"{len(answer.looked)} director{'ies' if len(answer.looked) != 1 else 'y'} of runs"
    if answer.uses:
        page.verdict("unknown", f"no run in {searched} made this file; some runs used it", "red")
    else:
        page.verdict("unknown", f"no run in {searched} made or used this file", "red")


def _claims(answer: Answer, page: Page) -> None:
    """Show the manifest of the checkpoint. It is unverified."""
    if answer.manifest is not None:
        manifest = answer.manifest.manifest
        parts = [f"step {manifest.step}"]
        parts += [f"epoch {manifest.epoch}"] if manifest.epoch is not None else []
        parts += [f"run {manifest.run}" if manifest.run else "made outside of a run"]
        page.row("checkpoint", ", ".join(parts), indent=0)
        page.row("", str(answer.manifest.path), indent=0)
        if answer.run is None:  # otherwise the record has these values
            page.row("  image", manifest.image or "", indent=0)
            page.row("  spec", manifest.spec or "", indent=0)
            page.row("  code", manifest.code.digest or "", indent=0)
            page.row("  seed", "" if manifest.seeds.master is None else str(manifest.seeds.master), indent=0)
            page.listing("data", [f"{name} {manifest.data[name]}" for name in sorted(manifest.data)])


def _run(answer: Answer, page: Page) -> None:
    run = answer.run
    if run is None:
        return
    page.heading(f"run {run.short}")
    page.rows((*runpage.head(run, run.tags), *runpage.inputs(run, run.parents)), indent=2)
    page.row("spec in", "not found next to the runs or in the store" if answer.spec is None else str(answer.spec.directory))
    page.row("commit", _commit(answer))
    seeds = runpage.own_seeds(() if run.end is None else run.end.seeded, complete=page.complete)
    page.rows((("own seed", line) for line in seeds), indent=2)


def _relatives(page: Page, heading: str, relatives: tuple[Relative, ...], none: str) -> None:
    page.heading(heading, "" if relatives else none)
    page.table([_row(relative) for relative in relatives])


def _graph(run: Run, family: Family) -> Graph:
    """The runs around a run. A relative is a neighbour of the last one before it with a smaller depth."""
    nodes, edges = [_node(run.id, run, 0)], list[tuple[str, str]]()
    for sign, relatives in ((-1, family.parents), (1, family.children)):
        path = [run.id]
        for relative in relatives:
            path[relative.depth :] = [relative.id]
            if not relative.again:
                nodes.append(_node(relative.id, relative.run, sign * relative.depth))
            neighbour = path[relative.depth - 1]
            edges.append((neighbour, relative.id) if sign > 0 else (relative.id, neighbour))
    known = {node.key for node in nodes}
    unique = {node.key: node for node in reversed(nodes)}
    edges = [edge for edge in dict.fromkeys(edges) if known.issuperset(edge)]
    return Graph(f"lineage of run {run.short}", [*reversed(unique.values())], edges)


def _node(run_id: str, run: Run | None, column: int) -> Node:
    if run is None:
        return Node(run_id, (ids.short(run_id), "its record was not found"), column)
    return Node(run_id, (f"{run.short}  {run.ending}", run.start.command_line), column)


def _row(relative: Relative) -> tuple[str, ...]:
    indent = "  " * (relative.depth - 1)
    remarks = [*relative.how]
    if relative.changed:
        remarks.append("its record was changed since")
    if relative.again:
        remarks.append("shown above")
    if relative.run is None:
        return (f"{indent}{relative.id}", "", "", "", ", ".join([*remarks, "its record was not found"]))
    short, started, command = runpage.columns(relative.run.start)
    return (f"{indent}{short}", started, command, relative.run.ending, ", ".join(remarks))


def _origin(origin: Use) -> str:
    how = {"output": "according to its record", "checkpoints": "a new file in its --checkpoints directory"}
    source = how.get(origin.how, "according to the checkpoint's manifest")
    return f"run {origin.run.short}: {shorten(origin.paths)}, {source}"


def _use(use: Use) -> str:
    return f"{use.how}: {', '.join(use.paths)}" if use.paths else use.how


def print_remarks(answer: Answer) -> None:
    """Print what is not in the page, on stderr."""
    for note in answer.remarks:
        messages.say(f"note: {note}")
    for run in answer.unreadable:
        messages.say.warn(f"cannot be read: {run.why}")
    if answer.run is not None:
        messages.say(f"next: repro-env runs show {answer.run.short} --runs {shlex.quote(str(answer.run.directory.parent))}")
    elif not answer.known:
        if answer.missing:
            messages.say(f"not searched, because they do not exist now: {', '.join(str(path) for path in answer.missing[:5])}")
        messages.say("next: search another directory of runs with --runs DIR")


def _commit(answer: Answer) -> str:
    """The Git commit of the source; empty if the source is not the captured one."""
    if answer.run is None or answer.spec is None or (source := answer.spec.spec.observed.source) is None or source.git is None:
        return ""
    git = source.git
    if source.tree.sha256 != answer.run.start.source.digest or not git.commit:
        return ""
    return git.commit + (" with changes" if git.dirty or git.untracked else "") + (f" of {git.remote}" if git.remote else "")
