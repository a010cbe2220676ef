"""`repro-env check`: compare the live environment, the code and the data with the spec."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Annotated

import typer

from repro_env.api.check import CheckResult, check
from repro_env.cli.ui import differences as difference
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import (
    AllOption,
    HtmlOption,
    RunsOption,
    SpecArgument,
    flag,
    parse_mounts,
    shared,
    value,
)
from repro_env.cli.ui.page import Page, save
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import UsageError
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened, open_spec


def command(
    spec: SpecArgument = None,
    environment: Annotated[bool, flag("--environment", "Compare only the environment, not the code and the data.")] = False,
    project: Annotated[bool, flag("--project", "Compare only the code: its files and the state of Git.")] = False,
    policy: Annotated[
        bool,
        flag("--policy", "Judge the project and its last run by its policy instead. With --project: only the project."),
    ] = False,
    python: Annotated[
        str | None,
        value("PATH", "Compare this environment: its Python, or its directory. Default: the captured one."),
    ] = None,
    source: Annotated[Path | None, shared(RunOptions, "source")] = None,
    data: Annotated[
        list[str] | None,
        value("SRC[:DST]", "Compare SRC with the captured data that runs see at DST. DST defaults to SRC. Repeatable."),
    ] = None,
    all_: AllOption = False,
    html: HtmlOption = None,
    runs: RunsOption = None,
) -> None:
    """Compare the live environment, the code and the data with the spec.

    \b
      repro-env check                    compare everything
      repro-env check --environment      compare packages, edited files, interpreter, system and variables
      repro-env check --project          compare the code; needs neither the environment nor the store (for CI)
      repro-env check --policy           judge by the rules in [tool.repro-env.policy] of pyproject.toml

    Every file is compared byte for byte, and variables that can change numbers with those of your shell.

    In the list, `-` marks what was removed, `+` what was added, and `~` what changed (captured -> now). Differences that can
    change numbers come first. A different Git commit with the same files does not count.

    Exit code 0: nothing changed, and no rule is broken. 1: something changed, could not be compared, or broke a rule.
    """
    if environment and project:
        raise UsageError("--environment and --project are mutually exclusive", hint="leave out both to check everything")
    for option, given, excluded, scope in (
        ("--python", python, project, "--project"),
        ("--source", source, environment, "--environment"),
        ("--data", data, environment or project, "--environment" if environment else "--project"),
        ("--environment", environment, policy, "--policy"),
        ("--python", python, policy, "--policy"),
        ("--data", data, policy, "--policy"),
        ("--runs", runs, project or not policy, "--project" if project else "no --policy"),
    ):
        if given and excluded:
            raise UsageError(f"{option} has no effect with {scope}", hint=f"leave out {option} or {scope}")
    location = open_spec(spec, tell=messages.say)
    if policy:
        raise typer.Exit(_judge(location, source, runs, html, is_project=project))
    checked = check(
        location,
        environment=not project,
        project=not environment,
        python=python,
        source=source,
        data=parse_mounts(data),
        tell=messages.say,
    )
    show = functools.partial(_show, location.spec, location.directory, checked)
    save(html, f"check of {location.directory}", show, [f"repro-env check {shlex.quote(str(location.directory))}"])
    if not messages.answer_in_json(
        checked.compared,
        environment=checked.environment,
        source=checked.source,
        spec=location.directory / "spec.json",
        spec_digest=location.spec.digest,
    ):
        page = Page(most=None if all_ else difference.SHOWN)
        show(page)
        page.print()
        if not checked.compared.same:
            messages.say("next: repro-env capture, to accept the current state")
    raise typer.Exit(0 if checked.compared.same else 1)


def _judge(location: Opened, source: Path | None, runs: Path | None, html: Path | None, *, is_project: bool) -> int:
    """Judge by the policy. Returns the exit code."""
    from repro_env.api.policy import find, judge, last_run  # slow to import, like the next one
    from repro_env.cli.ui import policypage

    found = find(location, source=source, runs=runs)
    if found is None:
        raise UsageError("the project has no policy", where=str(location.directory), hint=f"add rules: {policypage.EXAMPLE}")
    judged = judge(found, None if is_project else last_run(found.runs))
    show = functools.partial(policypage.show, judged=judged)
    save(html, f"policy of {found.project}", show, [f"repro-env check --policy {shlex.quote(str(location.directory))}"])
    if not messages.answer_in_json(judged):
        page = Page()
        show(page)
        page.print()
    return 0 if judged.good else 1


def _show(spec: Spec, directory: Path, checked: CheckResult, page: Page) -> None:
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
