"""`repro-env doctor`: one line for each thing that runs need, with a fix if it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.api.doctor import Diagnosis, examine
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import value
from repro_env.sandbox.doctor import ADMINISTRATOR
from repro_env.schema.errors import ReproEnvError
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store


def command(
    for_dir: Annotated[
        Path | None,
        value("DIR", "Check the directory in which runs will be stored. Default: the current directory.", "--for"),
    ] = None,
) -> None:
    """Check whether this machine can run commands, and suggest fixes.

    Each line begins with `ok`, `fallback` (runs work, with a limitation), `blocked`, or `absent` (only some runners need it).

    Exit code 0: runs work on this machine. 1: they do not.
    """
    store = Store.open()
    answer = examine(store.root, for_dir or Path.cwd())
    if not messages.answer_in_json(answer):
        _print(answer, store)
    raise typer.Exit(0 if answer.works else 1)


def _print(answer: Diagnosis, store: Store) -> None:
    width = max(len(finding.name) for finding in answer.findings)
    for finding in answer.findings:
        messages.result(f"{finding.state:9} {finding.name:{width}}  {finding.text}")
        if finding.fix:
            messages.result(f"{'':9} {'':{width}}  {_fix(finding.fix)}")
    for text in answer.alternatives:
        messages.result(f"works     {text}")
    messages.say(
        f"next: repro-env {_next_command(store)}"
        if answer.works
        else "runs in the image do not work on this machine until this is fixed"
    )


def _next_command(store: Store) -> str:
    """The next command for the project in this directory."""
    try:
        spec, _ = locate(None, Path.cwd())
    except ReproEnvError:
        return "capture"
    return "rebuild" if store.images.get(spec.expected.image_id) is None else "exec COMMAND"


def _fix(text: str) -> str:
    """The fix, marked if only an administrator can apply it."""
    plain = text.removeprefix(ADMINISTRATOR)
    return f"fix: {text}" if plain == text else f"fix, by an administrator: {plain}"
