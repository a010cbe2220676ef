"""`repro-env runs promote`, `runs versions` and `runs retire`: the life of a result after its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from repro_env.api.runs import find_runs_directory
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import ByOption, HtmlOption, RunArgument, RunsOption, argument, flag, runs_option, value
from repro_env.cli.ui.page import Page, save
from repro_env.runs.records import ids, records

if TYPE_CHECKING:
    from repro_env.api import versions as use_case


def promote(
    run_id: RunArgument,
    target: Annotated[str, argument("NAME@STAGE", "The model and its stage, such as classifier@production.")],
    reason: Annotated[str, value("TEXT", "Record why.")] = "",
    to: Annotated[
        str | None,
        value("HOST/NAME", "Also push the image to this repository, with the tags NAME-vN and NAME-STAGE."),
    ] = None,
    by: ByOption = "",
    runs: RunsOption = None,
) -> None:
    """Make a run the next version of a model, and give it a stage.

    A version never changes: a run that is one keeps its number, and gets the stage. A stage belongs to the run that got it last;
    `runs versions NAME` lists all changes. Refused are runs that failed, are retired, lost or changed files, or break the policy.
    """
    from repro_env.api import versions as use_case  # slow to import

    directory = records.find(find_runs_directory(runs), run_id)
    made = use_case.promote(directory, target, reason=reason, by=by, to=to, tell=messages.say)
    if messages.answer_in_json(made):
        return
    messages.result(f"{made.name}@{made.stage} is version {made.number}: run {ids.short(made.run)}")
    if made.image:
        messages.say(f"the image is {made.image}")
    messages.say(f"next: repro-env runs versions {made.name}{runs_option(runs)}")


def command(
    name: Annotated[str | None, argument("NAME", "Only this model, with all changes. Default: all models.")] = None,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """List the versions of models and their stages, newest first."""
    from repro_env.api import versions as use_case  # slow to import

    directory = find_runs_directory(runs)
    entries = [entry for entry in use_case.history(directory) if name in (None, entry.name)]

    def show(page: Page) -> None:
        page.table(_rows(entries), header=("VERSION", "RUN", "WHEN (UTC)", "STAGES", "STATE"), indent=0, complete=True)
        if name is not None:
            page.heading("changes")
            page.table(
                [
                    (_when(entry), f"v{entry.number}", entry.stage, entry.by, " ".join(entry.reason), entry.image)
                    for entry in reversed(entries)
                ],
                header=("WHEN (UTC)", "VERSION", "STAGE", "BY", "REASON", "IMAGE"),
            )

    save(html, f"versions of {name or directory.parent.name}", show, [f"repro-env runs versions {name or ''}".strip()])
    if messages.answer_in_json({"versions": entries}):
        return
    if entries:
        page = Page()
        show(page)
        page.print()
    else:
        messages.say(f"no versions{f' of {name}' if name else ''} in {directory}; next: repro-env runs promote ID NAME@STAGE")


def retire(
    run_id: RunArgument,
    reason: Annotated[str, argument("REASON", "Why the run must not be used any more; with --undo, why it may.")],
    undo: Annotated[bool, flag("--undo", "Take it back.")] = False,
    by: ByOption = "",
    runs: RunsOption = None,
) -> None:
    """Mark that a run must not be used any more.

    It cannot be promoted, is not due, and a run that starts from it prints a warning. Nothing is deleted.
    """
    from repro_env.api import versions as use_case  # slow to import

    directory = records.find(find_runs_directory(runs), run_id)
    note = use_case.retire(directory, reason, by=by, undo=undo)
    if not messages.answer_in_json({"run": directory.name, "annotation": note}):
        messages.result(f"{directory.name}: {note.kind}")
        messages.say(f"next: repro-env runs list{runs_option(runs)}")


def _rows(entries: list[use_case.Promoted]) -> list[tuple[str, ...]]:
    from repro_env.api import versions as use_case  # slow to import

    current = use_case.current(entries)
    stages: dict[tuple[str, int, str], list[str]] = {}
    first: dict[tuple[str, int, str], use_case.Promoted] = {}
    for entry in entries:
        first.setdefault((entry.name, entry.number, entry.run), entry)
    for entry in current.values():
        stages.setdefault((entry.name, entry.number, entry.run), []).append(entry.stage)
    numbers = [key[:2] for key in first]
    return [
        (
            f"{entry.name}@v{entry.number}",
            ids.short(entry.run),
            _when(entry),
            ", ".join(stages.get(key, ())),
            "retired" if entry.is_retired else "two runs have this version" if numbers.count(key[:2]) > 1 else "",
        )
        for key, entry in reversed(first.items())
    ]


def _when(entry: use_case.Promoted) -> str:
    return entry.written[:19].replace("T", " ")
