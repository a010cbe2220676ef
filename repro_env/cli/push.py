"""`repro-env push`: push an image and its spec to a registry."""

from __future__ import annotations

from typing import Annotated

from repro_env.api.push import push
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import SpecOption, argument, flag


def command(
    reference: Annotated[str, argument("REF", "The target, HOST/NAME:TAG. TAG defaults to latest.")],
    spec: SpecOption = None,
    frozen: Annotated[bool, flag("--frozen", "Push the captured code even if the code next to the spec differs.")] = False,
) -> None:
    """Push the image, the spec and the bundled files to a registry.

    \b
      repro-env push REGISTRY/TEAM/NAME:TAG                push the nearest repro/spec.json
      repro-env push REGISTRY/TEAM/NAME:TAG --spec SPEC    push another spec

    The command also writes `remote.json` next to the spec: commit it, so that rebuilds in a clone can download missing
    files. The credentials of `docker login` are used, and are not stored.
    """
    result = push(reference, spec, frozen=frozen, tell=messages.say)
    if not messages.answer_in_json(result):
        messages.result(result.image)
    messages.say(
        f"sent {messages.size(result.sent)} in {result.blobs} blobs"
        if result.blobs
        else "nothing was sent: the registry has all blobs"
    )
    if not messages.Screen.json:
        messages.say(f"next: repro-env rebuild {result.reference}")
