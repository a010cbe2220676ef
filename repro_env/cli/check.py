"""`repro-env check`: compare the live environment, the code and the data with the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.api.check import CheckResult, check
from repro_env.cli.ui import differences as difference
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import AllOption, SourceOption, SpecArgument, flag, parse_mounts, value
from repro_env.cli.ui.page import Page
from repro_env.schema.errors import UsageError
from repro_env.schema.spec import Spec
from repro_env.specs.argument import open_spec


def command(
    spec: SpecArgument = None,
    environment: Annotated[bool, flag("--environment", "Compare only the environment, not the code and the data.")] = False,
    project: Annotated[bool, flag("--project", "Compare only the code: its files and the state of Git.")] = False,
    python: Annotated[
        str | None,
        value("PATH", "Compare this environment: its Python, or its directory. Default: the captured environment."),
    ] = None,
    source: SourceOption = None,
    data: Annotated[
        list[str] | None,
        value("SRC[:DST]", "Compare SRC with the captured data that runs see at DST. DST defaults to SRC. Repeatable."),
    ] = None,
    all_: AllOption = False,
) -> None:
    """Compare the live environment, the code and the data with the spec, and list what changed since the capture.

    \b
      repro-env check                    compare everything
      repro-env check --environment      compare packages, edited files, interpreter, system and variables
      repro-env check --project          compare the code; needs neither the environment nor the store (for CI)

    Every file is compared byte for byte, so edits in site-packages and upgrades of system libraries are found. Variables that
    can change numbers are compared with those of your shell. Data is compared at the path that runs use; to compare
    another path, use --data.

    In the list, `-` marks what was removed, `+` what was added, and `~` what changed (captured -> now). Differences that can
    change numbers come first. A different Git commit with the same files is listed, but is not counted as a difference.

    Exit code 0: nothing changed. 1: something changed, or could not be compared.
    """
    if environment and project:
        raise UsageError("--environment and --project are mutually exclusive", hint="leave out both to check everything")
    for option, given, excluded, scope in (
        ("--python", python, project, "--project"),
        ("--source", source, environment, "--environment"),
        ("--data", data, environment or project, "--environment" if environment else "--project"),
    ):
        if given and excluded:
            raise UsageError(f"{option} has no effect with {scope}", hint=f"leave out {option} or {scope}")
    location = open_spec(spec, tell=messages.say)
    checked = check(
        location,
        environment=not project,
        project=not environment,
        python=python,
        source=source,
        data=parse_mounts(data),
        tell=messages.say,
    )
    if not messages.answer_in_json(
        checked.compared,
        environment=checked.environment,
        source=checked.source,
        spec=location.directory / "spec.json",
        spec_digest=location.spec.digest,
    ):
        _print(location.spec, location.directory, checked, all_=all_)
        if not checked.compared.same:
            messages.say("next: repro-env capture, to accept the current state")
    raise typer.Exit(0 if checked.compared.same else 1)


def _print(spec: Spec, directory: Path, checked: CheckResult, *, all_: bool) -> None:
    page = Page(most=None if all_ else difference.SHOWN)
    page.row("spec", f"{directory} ({spec.digest[7:19]})", indent=0)
    page.row("environment", checked.environment, indent=0)
    page.row("source", checked.source, indent=0)
    differences = checked.compared.differences
    # Digests differ because something else differs. They are shown only if they are all that differs.
    causes = [entry for entry in differences if entry.level != "digests"]
    shown = causes if any(entry.counts for entry in causes) else differences
    if checked.compared.same:
        page.verdict("same", "nothing changed since the capture", "green")
    elif any(entry.counts for entry in shown):
        page.verdict("drifted", difference.summary(shown), "red")
    else:
        page.verdict("not compared", "no difference was found, but something could not be compared", "red")
    difference.show(page, shown, checked.compared.not_compared)
    page.print()
