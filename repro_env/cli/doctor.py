"""`repro-env doctor`: one line for each thing a run needs, with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption
from repro_env.model.errors import ReproEnvError

if TYPE_CHECKING:
    from repro_env.store.store import Store


def add(app: typer.Typer) -> None:
    app.command(name="doctor", help=commands.COMMANDS["doctor"])(command)


def command(
    for_dir: Annotated[
        Path | None,
        typer.Option("--for", help="The folder that runs will be kept in.", metavar="DIR", show_default="the current folder"),
    ] = None,
    json: JsonOption = False,
) -> None:
    raise typer.Exit(doctor(for_dir, json=json))


def doctor(for_dir: Path | None, *, json: bool) -> int:
    """Returns the exit code: 0 when `exec` will run here, perhaps with fall-backs, else 1."""
    from repro_env.flows.doctor import examine
    from repro_env.store.store import Store

    store = Store.open()
    answer = examine(store.root, for_dir or Path.cwd())
    if json:
        say.json_result(answer)
        return 0 if answer.works else 1
    width = max(len(finding.name) for finding in answer.findings)
    for finding in answer.findings:
        say.result(f"{_WORDS[finding.state]:9} {finding.name:{width}}  {finding.text}")
        if finding.fix:
            say.result(f"{'':9} {'':{width}}  {_fix(finding.fix)}")
    for text in answer.alternatives:
        say.result(f"works     {text}")
    say.say(
        f"next: repro-env {_after(store)}"
        if answer.works
        else "runs in the image are blocked on this machine until this is fixed"
    )
    return 0 if answer.works else 1


def _after(store: Store) -> str:
    """What to do next where runs work: what the project in this directory lacks."""
    from repro_env.flows.locate import locate

    try:
        spec, _ = locate(None, Path.cwd())
    except ReproEnvError:
        return "capture"
    return "rebuild" if store.images.get(spec.expected.image_id) is None else "exec COMMAND"


def _fix(text: str) -> str:
    """With who can do it, where that is not the user."""
    from repro_env.run.diagnosis import ADMINISTRATOR

    plain = text.removeprefix(ADMINISTRATOR)
    return f"fix: {text}" if plain == text else f"fix, by an administrator: {plain}"


_WORDS = {"ok": "ok", "fallback": "falls back", "blocked": "blocked", "absent": "absent"}
