"""The page about the history of a file or a run (`repro-env lineage`)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from repro_env.cli.ui import messages, runpage
from repro_env.cli.ui.page import Page
from repro_env.schema.messages import plural, shorten

if TYPE_CHECKING:
    from repro_env.api.lineage import Answer
    from repro_env.runs.lineage.families import Relative, Use

_SHOWN = 20
"""Entries of a list that are shown without --all."""


def show(answer: Answer, *, complete: bool) -> None:
    """Print the page. `complete`: do not shorten lists."""
    page = Page(most=None if complete else _SHOWN)
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
        _relatives(page, "parents", answer.family.parents, "no known parent")
        _relatives(page, "children", answer.family.children, "no known child")
        if answer.family.truncated:
            page.text("and more: there are too many related runs to show all of them")
    page.print()
    _notes(answer)


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
    for line in (*runpage.head(run, run.tags), *runpage.inputs(run, run.parents)):
        page.text(line)
    page.text(f"spec in   {'not found next to the runs or in the store' if answer.spec is None else answer.spec.directory}")
    if commit := _commit(answer):
        page.text(f"commit    {commit}")
    for line in runpage.own_seeds(() if run.end is None else run.end.seeded, complete=page.complete):
        page.text(f"own seed  {line}")


def _relatives(page: Page, heading: str, relatives: tuple[Relative, ...], none: str) -> None:
    page.heading(heading, "" if relatives else none)
    page.table([_row(relative) for relative in relatives])


def _row(relative: Relative) -> tuple[str, ...]:
    indent = "  " * (relative.depth - 1)
    notes = [*relative.how]
    if relative.changed:
        notes.append("its record was changed since")
    if relative.again:
        notes.append("shown above")
    if relative.run is None:
        return (f"{indent}{relative.id}", "", "", "", ", ".join([*notes, "its record was not found"]))
    short, started, command = runpage.columns(relative.run.start)
    return (f"{indent}{short}", started, command, relative.run.ending, ", ".join(notes))


def _origin(origin: Use) -> str:
    how = {"output": "according to its record", "checkpoints": "a new file in its --checkpoints directory"}
    source = how.get(origin.how, "according to the checkpoint's manifest")
    return f"run {origin.run.short}: {shorten(origin.paths)}, {source}"


def _use(use: Use) -> str:
    return f"{use.how}: {', '.join(use.paths)}" if use.paths else use.how


def _notes(answer: Answer) -> None:
    for note in answer.notes:
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
