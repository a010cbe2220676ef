"""The page of a file's or a run's history, for people (`repro-env lineage`)."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from repro_env.catalog import ids
from repro_env.cli import ownseeds, say
from repro_env.cli.page import Page

if TYPE_CHECKING:
    from repro_env.catalog.index import Summary
    from repro_env.catalog.lineage import Relative, Use
    from repro_env.catalog.origin import Origin
    from repro_env.flows.lineage import Answer
    from repro_env.model.run import Parent

_SHOWN = 20
"""Entries of a list, unless all are asked for."""
_ROLES = {
    "data": "its data",
    "recipe": "its recipe",
    "source": "its source",
    "spec": "its spec",
    "image": "its image",
    "record": "its record",
}


def tell(found: Answer, *, whole: bool) -> None:
    """Print it. `whole`: no list is cut."""
    page = Page.of_stdout(most=None if whole else _SHOWN)
    if found.file is not None:
        page.row("file", f"{found.file} ({say.size(found.size or 0)})", indent=0)
    page.row("sha256", found.digest.removeprefix("sha256:"), indent=0)
    others = found.origins[1:]
    if found.origins:
        page.row("made by", _made(found.origins[0]), indent=0)
    elif found.digest and (found.run is None or found.uses):
        _unmade(found, page)
    if others:
        page.row("the same by", f"{len(others)} other run{'s' if len(others) > 1 else ''}, byte for byte", indent=0)
        page.table([(*_columns(one.run), _made(one)) for one in others], "--all")
    _claims(found, page)
    if found.run is not None:
        _run(found, page)
    if found.uses:
        page.heading("used by", f"{len(found.uses)}")
        page.table([(*_columns(use.run), _use(use)) for use in found.uses], "--all")
    if found.family is not None:
        _relatives(page, "parents", found.family.parents, "no known parent")
        _relatives(page, "children", found.family.children, "no known child")
        if found.family.cut:
            page.text("and more: a family this large is not shown whole")
    page.print()
    _after(found)


def _unmade(found: Answer, page: Page) -> None:
    if found.known:
        return
    looked = f"{len(found.looked)} folder{'s' if len(found.looked) != 1 else ''} of runs"
    if found.uses:
        page.verdict("unknown", f"no run in {looked} made it; runs were given it", "red")
    else:
        page.verdict("unknown", f"no run in {looked} has to do with it", "red")


def _claims(found: Answer, page: Page) -> None:
    """What the file and the manifest that names it say of themselves."""
    claim = found.manifest
    if claim is not None:
        said = claim.manifest
        where = [f"step {said.step}"]
        where += [f"epoch {said.epoch}"] if said.epoch is not None else []
        where += [f"run {said.run}" if said.run else "made outside of a run"]
        page.row("checkpoint", ", ".join(where), indent=0)
        page.row("", str(claim.path), indent=0)
        if found.run is None:  # else the record says it
            page.row("  image", said.image or "", indent=0)
            page.row("  spec", said.spec or "", indent=0)
            page.row("  code", said.code.digest or "", indent=0)
            page.row("  seed", "" if said.seeds.master is None else str(said.seeds.master), indent=0)
            page.listing("data", [f"{name} {said.data[name]}" for name in sorted(said.data)], "--json")
    if found.metadata:
        page.listing(
            "in the file", [f"{name}: {found.metadata[name][:200]}" for name in sorted(found.metadata)][:_SHOWN], "--json"
        )


def _run(found: Answer, page: Page) -> None:
    run, summary = found.run, found.summary
    if run is None or summary is None:
        return
    start, source = run.start, run.start.source
    page.heading(f"run {run.short}", start.started)
    page.row("command", shlex.join(start.command))
    page.row("in", start.cwd)
    page.row("ended", summary.ended + (f" after {run.end.seconds:.1f} s" if run.end is not None else ""))
    page.row("record", str(run.folder))
    if not summary.vouched:
        page.row("", "start.json was changed: it is not the one that end.json speaks of")
    page.row("image", start.image)
    page.row("spec", start.spec)
    page.row("", _where_spec(found))
    page.row("code", f"{source.directory or source.path} ({'captured' if source.directory is None else 'live'})")
    page.row("", source.digest)
    page.row("", commit(found))
    page.listing(
        "data", [f"{one.source} at {one.target}" + (f" ({one.digest})" if one.digest else "") for one in start.data], "--all"
    )
    page.listing("recipe", [f"{one.path} ({one.sha256})" for one in start.recipe], "--all")
    page.listing("started from", [_started_from(one) for one in summary.parents], "--all")
    page.row("seed", str(start.seed))
    page.row("determinism", start.determinism)
    page.row("network", "yes: what came from there is not recorded" if start.network else "")
    if run.end is not None:
        page.listing("its own seeds", ownseeds.lines(run.end.seeded, whole=page.whole), "--all")
    page.row("tags", "cannot be read" if summary.tags is None else ", ".join(summary.tags))


def _started_from(one: Parent) -> str:
    said = [f"run {ids.short(one.id)}" if one.id else "made outside of a run", one.path]
    said += [f"step {one.step}" if one.step is not None else "", one.sha256 or ""]
    return f"{one.how}: {', '.join(filter(None, said))}"


def _where_spec(found: Answer) -> str:
    if found.spec is None:
        return "not here: neither beside the runs, nor in the store, nor in git's history"
    return f"{found.spec.folder}" + (f", in commit {found.spec.commit}" if found.spec.commit else "")


def _relatives(page: Page, heading: str, relatives: tuple[Relative, ...], none: str) -> None:
    page.heading(heading, "" if relatives else none)
    page.table([_line(one) for one in relatives], "--all")


def _line(one: Relative) -> tuple[str, ...]:
    before = "  " * (one.depth - 1)
    said = [*one.how]
    if one.changed:
        said.append("its record was changed since")
    if one.again:
        said.append("told above")
    if one.run is None:
        return (f"{before}{one.id}", "", "", "", ", ".join([*said, "its record is not known here"]))
    short, *rest = _columns(one.run)
    return (f"{before}{short}", *rest, one.run.ended, ", ".join(said))


def _columns(run: Summary) -> tuple[str, str, str]:
    words = shlex.join(run.command)
    return (run.short, run.started[:19].replace("T", " "), words if len(words) <= 40 else words[:39] + "…")


def _made(one: Origin) -> str:
    shown = ", ".join(one.paths[:3]) + (f" and {len(one.paths) - 3} more" if len(one.paths) > 3 else "")
    if one.how == "output":
        return f"run {one.run.short}: {shown}, in its record"
    if one.how == "checkpoints":
        return f"run {one.run.short}: {shown}, new in its checkpoints when it ended"
    if one.how == "manifest":
        return f"run {one.run.short}, as its checkpoint says: {shown}"
    return f"run {one.run.short}: {shown}, left there; the run is {one.run.state}, so no record vouches for it"


def _use(use: Use) -> str:
    return f"{_ROLES[use.role]}: {use.path}" if use.path else _ROLES[use.role]


def _after(found: Answer) -> None:
    for note in found.notes:
        say.say(f"note: {note}")
    for one in found.unreadable:
        say.say.warn(f"cannot be read: {one.why}")
    if found.run is not None:
        say.say(f"next: repro-env runs show {found.run.short} --runs {shlex.quote(str(found.run.folder.parent))}")
    elif not found.known:
        if found.missing:
            say.say(f"not there now, and known to hold runs: {', '.join(str(path) for path in found.missing[:5])}")
        say.say("next: name another folder of runs with --runs DIR")


def commit(found: Answer) -> str:
    """Of the source, where it is the captured one."""
    if found.run is None or found.spec is None or (source := found.spec.spec.observed.source) is None or source.git is None:
        return ""
    git = source.git
    if source.tree.sha256 != found.run.start.source.digest or not git.commit:
        return ""
    return (
        f"commit {git.commit}"
        + (" with changes" if git.dirty or git.untracked else "")
        + (f" of {git.remote}" if git.remote else "")
    )
