"""`repro-env check`: is what is here still what was captured?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption, SpecArgument
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.flows.check import Asked, Checked
    from repro_env.model.spec import Spec

_HELP = """\
Compare the live environment, the code and the data with the spec, and name what has changed.

\b
  repro-env check                    everything
  repro-env check --environment      the environment alone: packages, edited files, interpreter, system, variables
  repro-env check --project          the code alone: no environment and no store content is needed (for CI)

Files are compared by their bytes, so an edit in site-packages is seen, and so is an upgrade of a system library.
Variables that change numbers are compared with those of your shell. Another commit around the same files is named and
counts for nothing. Data are looked for where runs see them; elsewhere with --data.

Lines begin with `-` for what is gone, `+` for what is new, `~` for what is otherwise now (captured -> now). What can
change numbers comes first.

Exit code 0: all is as captured. 1: something has changed, or could not be compared; both are named.
"""


def add(app: typer.Typer) -> None:
    app.command(name="check", help=_HELP, short_help=commands.COMMANDS["check"])(command)


def command(
    spec: SpecArgument = None,
    environment: Annotated[bool, typer.Option("--environment", help="The environment alone, not the code and the data.")] = False,
    project: Annotated[
        bool, typer.Option("--project", help="The code alone: its files, what it says it needs, and git's state.")
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            help="The environment to compare: its python, or its folder. Default: the captured one.",
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="The code to compare. Default: the directory that holds the spec's directory.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Where captured data are now; DST is where runs see them, by default SRC.", metavar="SRC[:DST]"),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every difference, however many there are.")] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.check import check
    from repro_env.flows.opened import opened
    from repro_env.store.store import Store

    asked = _asked(environment=environment, project=project, python=python, source=source, data=data or ())
    which = opened(spec, Path.cwd(), tell=say.say)
    found, folder = which.spec, which.folder
    done = check(found, folder, asked, store=Store.open(), tell=say.say)
    if json:
        say.json_result(_facts(found, folder, done))
    else:
        _tell(found, folder, done, all_=all_)
    if not (done.compared.same or json):
        say.say("next: repro-env capture, to accept the current state")
    raise typer.Exit(0 if done.compared.same else 1)


def _asked(
    *, environment: bool, project: bool, python: str | None, source: Path | None, data: list[str] | tuple[str, ...]
) -> Asked:
    from repro_env.cli.exec import mount
    from repro_env.flows.check import Asked

    if environment and project:
        raise UsageError("say the opposite", where="--environment and --project", hint="leave out both to check everything")
    for option, given, against, other in (
        ("--python", python, project, "--project"),
        ("--source", source, environment, "--environment"),
        ("--data", data, environment or project, "--environment" if environment else "--project"),
    ):
        if given and against:
            raise UsageError("is not looked at", where=f"{option} with {other}", hint=f"leave out {option} or {other}")
    if source is not None and not source.is_dir():
        raise UsageError("is no folder", where=f"--source {source}", hint="name the folder of the code")
    if python is not None and "/" in python:
        python = str(Path(python).absolute())
    pairs = [mount(text, "--data") for text in data]
    return Asked(
        environ=dict(os.environ),
        environment=not project,
        project=not environment,
        python=python,
        source=None if source is None else source.resolve(),
        data={(target or str(Path(path).absolute())).rstrip("/"): Path(path).absolute() for path, target in pairs},
    )


def _facts(spec: Spec, folder: Path, done: Checked) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    from repro_env.cli import difference

    return {
        "same": done.compared.same,
        "spec": str(folder / "spec.json"),
        "spec_digest": spec.digest,
        "environment": done.environment,
        "source": done.source,
        "differences": difference.facts(done.compared.differences),
        "not_compared": list(done.compared.missing),
    }


def _tell(spec: Spec, folder: Path, done: Checked, *, all_: bool) -> None:
    from repro_env.cli import difference
    from repro_env.cli.page import Page

    page = Page.of_stdout(most=None if all_ else difference.SHOWN)
    page.row("spec", f"{folder} ({spec.digest[7:19]})", indent=0)
    page.row("environment", done.environment, indent=0)
    page.row("source", done.source, indent=0)
    every = done.compared.differences
    # What follows from the rest is for `diff`, unless there is nothing that it follows from.
    found = (
        [one for one in every if one.level != "digests"] if any(one.counts and one.level != "digests" for one in every) else every
    )
    if done.compared.same:
        page.verdict("same", "all that was compared is as captured", "green")
    elif any(one.counts for one in found):
        page.verdict("drifted", difference.counted(found), "red")
    else:
        page.verdict("not compared", "what was compared is as captured, and something was not compared", "red")
    difference.show(page, found, done.compared.missing)
    page.print()
