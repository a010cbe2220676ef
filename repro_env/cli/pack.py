"""`repro-env pack`: a spec and what it needs as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption

_HELP = """\
Write a spec's folder as one file, which `rebuild`, `exec --spec` and `show` take like the folder.

\b
  repro-env pack repro paper.tar           the spec and what it carries; wheels come from their indexes again
  repro-env pack repro paper.tar --all     every wheel, package and the base too: rebuilds with no network, in years too
  repro-env pack REGISTRY/NAME:TAG x.tar   what was pushed there

The same spec gives the same bytes. The file is written at once or not at all.
"""


def add(app: typer.Typer) -> None:
    app.command(name="pack", help=_HELP, short_help=commands.COMMANDS["pack"])(command)


def command(
    spec: Annotated[
        str, typer.Argument(help="The spec, its folder, a packed FILE, or a registry's REF.", metavar="SPEC", show_default=False)
    ],
    file: Annotated[
        Path, typer.Argument(help="The file to write; replaced when it is there.", metavar="FILE", show_default=False)
    ],
    all_: Annotated[bool, typer.Option("--all", help="Every wheel and conda package too, fetched where it is missing.")] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Pack the captured code even if the code beside the spec differs from it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.opened import opened
    from repro_env.flows.pack import pack
    from repro_env.store.store import Store

    store, here = Store.open(), Path.cwd()
    found = opened(spec, here, store, say.say)
    done = pack(found.spec, found.folder, here / file, everything=all_, frozen=frozen, store=store, tell=say.say)
    if json:
        say.json_result(
            {
                "path": str(done.path),
                "sha256": done.digest,
                "size": done.size,
                "blobs": done.blobs,
                "complete": done.complete,
                "fetched": done.fetched,
                "spec_digest": done.spec_digest,
                "image_id": done.image_id,
            }
        )
    else:
        say.result(done.digest)
    if done.complete:
        say.say(f"{file} has {say.size(done.size)} and all that a rebuild needs")
    else:
        say.say(f"{file} has {say.size(done.size)}; a rebuild fetches the rest. With --all the file would hold it")
    say.say(f"next: repro-env rebuild {file}")
