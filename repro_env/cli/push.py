"""`repro-env push`: an image with its spec into a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption

_HELP = """\
Send the image to a registry, and with it the spec and all that the spec carries, so that both stay together.

\b
  repro-env push REGISTRY/TEAM/NAME:TAG               of the nearest repro/spec.json
  repro-env push REGISTRY/TEAM/NAME:TAG --spec SPEC

What is there is not sent again. From then on `repro-env rebuild REGISTRY/TEAM/NAME:TAG` needs nothing else, and
`remote.json` beside the spec says where a rebuild may take from what is missing. Credentials are those of
`docker login`; they are written nowhere.
"""


def add(app: typer.Typer) -> None:
    app.command(name="push", help=_HELP, short_help=commands.COMMANDS["push"])(command)


def command(
    reference: Annotated[
        str, typer.Argument(help="Where to: HOST/NAME:TAG. Without a tag: latest.", metavar="REF", show_default=False)
    ],
    spec: Annotated[
        str | None,
        typer.Option(
            help="The spec, its folder, a packed FILE, or a registry's REF. Default: the nearest repro/spec.json upwards.",
            metavar="SPEC",
            show_default=False,
        ),
    ] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Send the captured code even if the code beside the spec differs from it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.opened import opened
    from repro_env.flows.push import push
    from repro_env.registry.reference import parse
    from repro_env.store.store import Store

    to = parse(reference)
    store = Store.open()
    found = opened(spec, Path.cwd(), store, say.say)
    done = push(found.spec, found.folder, to, frozen=frozen, store=store, tell=say.say)
    if json:
        say.json_result(
            {
                "reference": done.reference,
                "image": done.image,
                "spec": done.spec,
                "image_id": done.image_id,
                "spec_digest": done.spec_digest,
                "sent": done.sent,
                "blobs": done.blobs,
                "changed": done.changed,
            }
        )
    else:
        say.result(done.image)
    say.say(f"sent {say.size(done.sent)} in {done.blobs} blobs" if done.changed else "all of it was there: nothing was sent")
    if not json:
        say.say(f"next: repro-env rebuild {done.reference}")
