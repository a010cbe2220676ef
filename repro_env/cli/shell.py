"""`repro-env shell`: an interactive shell where a run would be. Nothing is recorded, and what it writes is thrown away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import SpecArgument
from repro_env.model.errors import UsageError


def add(app: typer.Typer) -> None:
    app.command(name="shell", help=commands.COMMANDS["shell"])(command)


def command(
    spec: SpecArgument = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Show a file or folder read-only, as `exec --data`.", metavar="SRC[:DST]")
    ] = None,
    checkpoints: Annotated[
        list[str] | None, typer.Option(help="Show a folder that can be written, as `exec --checkpoints`.", metavar="SRC[:DST]")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="Set a variable, as `exec --env`.", metavar="NAME[=VALUE]")] = None,
    runner: Annotated[str, typer.Option(help="`embedded` or `docker`, as `exec --runner`.", metavar="NAME")] = "embedded",
    gpus: Annotated[str, typer.Option(help="As `exec --gpus`.", metavar="N|all|none")] = "none",
    network: Annotated[bool, typer.Option("--network", help="Let it reach the network.")] = False,
    data_changed: Annotated[
        bool, typer.Option("--data-changed", help="Run even if data named at capture is missing or changed.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Show the code in this directory. Default: the directory that holds the spec's directory.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Show the captured files, not the code as it is now.")] = False,
) -> int:
    from repro_env.cli import exec as run
    from repro_env.flows.asked import Asked
    from repro_env.flows.execute import execute
    from repro_env.flows.opened import opened
    from repro_env.store.store import Store

    chosen = run.runner_of(runner)
    if chosen == "host":
        raise UsageError("has no shell of its own", where="--runner host", hint="you are in one already")
    here = Path.cwd()
    store = Store.open()
    found = opened(spec, here, store, say.say)
    with store.temp.folder() as temporary:
        asked = Asked(
            command=("bash",),
            here=here,
            environ=dict(os.environ),
            runner=chosen,
            gpus=run.gpus_of(gpus, chosen),
            data=tuple(run.mount(text, "--data") for text in data or ()),
            checkpoints=tuple(run.mount(text, "--checkpoints") for text in checkpoints or ()),
            env=tuple(run.variable(text) for text in env or ()),
            network=network,
            frozen=frozen,
            source=None if source is None else here / source,
            data_changed=data_changed,
            runs=temporary / "runs",
            kept=False,
        )
        say.say("a shell in the captured environment; what you write here is thrown away, except in --checkpoints")
        done = execute(asked, found.spec, found.folder, store=store, tell=run.Marked())
    say.say("next: repro-env exec COMMAND")
    return done.end.outcome.exit_code
