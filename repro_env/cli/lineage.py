"""`repro-env lineage`: which run made a file, in what and from what, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say, summary
from repro_env.cli.options import JsonOption

if TYPE_CHECKING:
    from repro_env.catalog.lineage import Relative
    from repro_env.flows.lineage import Answer


def add(app: typer.Typer) -> None:
    app.command(name="lineage", help=commands.COMMANDS["lineage"])(lineage)


def add_below(runs: typer.Typer) -> None:
    """The same, for those who look for it among the commands about runs."""
    add(runs)


def lineage(
    what: Annotated[
        str,
        typer.Argument(
            help="A file, such as weights; a checkpoint's folder; a sha256 or its first 8 digits or more; a run's id or folder.",
            metavar="FILE|SHA256|ID",
            show_default=False,
        ),
    ],
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="A folder of runs to look into, beside those that were ever seen here.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Do not cut long lists.")] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.cli import lineagepage
    from repro_env.flows import lineage as story
    from repro_env.store.store import Store

    found = story.lineage_of(what, Path.cwd(), runs=None if runs is None else runs.absolute(), store=Store.open(), tell=say.tell)
    if json:
        say.json_result(facts(found))
    else:
        lineagepage.tell(found, whole=all_)
    if not found.known:
        raise typer.Exit(1)


def facts(found: Answer) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    from repro_env.cli import lineagepage

    run, claim = found.run, found.manifest
    return {
        "asked": found.asked,
        "known": found.known,
        "file": None if found.file is None else {"path": str(found.file), "size": found.size},
        "digest": found.digest or None,
        "made_by": [{**summary.facts(one.run), "how": one.how, "paths": list(one.paths)} for one in found.origins],
        "used_by": [{**summary.facts(use.run), "role": use.role, "path": use.path} for use in found.uses],
        "manifest": None
        if claim is None
        else {"path": str(claim.path), "digest": f"sha256:{claim.sha256}", "manifest": claim.manifest},
        "metadata": dict(found.metadata),
        "run": None
        if run is None or found.summary is None
        else {
            **summary.facts(found.summary),
            "intact": found.summary.vouched,
            "record": {"start": found.summary.start, "end": found.summary.end or None},
            "image": run.start.image,
            "spec": {
                "digest": run.start.spec,
                "file": run.start.spec_file,
                "folder": None if found.spec is None else str(found.spec.folder),
                "commit": None if found.spec is None else found.spec.commit or None,
            },
            "source": run.start.source,
            "commit": lineagepage.commit(found) or None,
            "data": run.start.data,
            "recipe": run.start.recipe,
            "seed": run.start.seed,
            "determinism": run.start.determinism,
            "seeded": () if run.end is None else run.end.seeded,
            "world": () if run.end is None else run.end.world,
            "parents": found.summary.parents,
        },
        "parents": [] if found.family is None else [_relative(one) for one in found.family.parents],
        "children": [] if found.family is None else [_relative(one) for one in found.family.children],
        "complete": found.family is None or not found.family.cut,
        "looked": [str(path) for path in found.looked],
        "missing": [str(path) for path in found.missing],
        "unreadable": [{"folder": str(one.folder), "error": str(one.why)} for one in found.unreadable],
        "notes": list(found.notes),
    }


def _relative(one: Relative) -> dict[str, object]:
    return {
        "id": one.id,
        "depth": one.depth,
        "how": list(one.how),
        "changed": one.changed,
        "again": one.again,
        "run": None if one.run is None else summary.facts(one.run),
    }
