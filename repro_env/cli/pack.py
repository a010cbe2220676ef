"""`repro-env pack`: write a spec and its files to one bundle file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from repro_env.api.pack import pack
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import argument, flag


def command(
    spec: Annotated[
        str,
        argument("SPEC", "A spec.json, its directory, a bundle FILE, or a REF in a registry."),
    ],
    file: Annotated[Path, argument("FILE", "The file to write. An existing file is replaced.")],
    all_: Annotated[
        bool, flag("--all", "Also pack all wheels, conda packages and the base; download those that are missing.")
    ] = False,
    frozen: Annotated[bool, flag("--frozen", "Pack the captured code even if the code next to the spec differs.")] = False,
) -> None:
    """Write a spec and its files to one bundle file, which commands accept as SPEC.

    \b
      repro-env pack repro paper.tar           pack the spec and the bundled files; a rebuild downloads the wheels
      repro-env pack repro paper.tar --all     also pack all wheels, conda packages and the base; a rebuild needs no network
      repro-env pack REGISTRY/NAME:TAG x.tar   pack a spec that was pushed to a registry

    The same spec always gives the same bytes. If the command fails, no file is written.
    """
    bundle = pack(spec, file, everything=all_, frozen=frozen, tell=messages.say)
    if not messages.answer_in_json(bundle):
        messages.result(bundle.sha256)
    if bundle.complete:
        messages.say(f"wrote {file} ({messages.size(bundle.size)}); it contains everything that a rebuild needs")
    else:
        messages.say(
            f"wrote {file} ({messages.size(bundle.size)}); a rebuild downloads the other files. To include them, use --all"
        )
    messages.say(f"next: repro-env rebuild {file}")
