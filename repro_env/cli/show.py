"""`repro-env show`: show what a spec contains, section by section."""

from __future__ import annotations

import functools
import shlex

from repro_env.api.show import show
from repro_env.cli.ui import messages, specpage
from repro_env.cli.ui.options import AllOption, HtmlOption, SpecArgument
from repro_env.cli.ui.page import Page, save

SHOWN = 10
"""Entries of a list that are shown without --all."""


def command(
    spec: SpecArgument = None,
    all_: AllOption = False,
    html: HtmlOption = None,
) -> None:
    """Show what a spec contains, and which of its files are on this machine.

    \b
      repro-env show                           show one page; long lists are shortened
      repro-env show --all                     show complete lists
      repro-env show --json                    print everything as one JSON object

    Only the spec, the names and sizes of its blobs, and the local store are read: it is safe for untrusted specs.
    """
    shown = show(spec, tell=messages.say)
    commands = [f"repro-env rebuild {shlex.quote(str(shown.directory))}"]
    save(html, f"spec {shown.spec.digest[7:19]}", functools.partial(specpage.add, shown), commands)
    if messages.answer_in_json(shown):
        return
    page = Page(most=None if all_ else SHOWN)
    specpage.add(shown, page)
    page.print()
    word = f" {shlex.quote(str(spec))}" if spec is not None else ""
    if any(not blob.here for blob in shown.blobs) and (shown.directory / "remote.json").is_file():
        messages.say(f"next: repro-env rebuild{word}, which downloads the missing blobs from the registry in remote.json")
    elif any(not blob.here for blob in shown.blobs):
        messages.say("next: copy the directory blobs/ of the capture next to the spec; a rebuild needs it")
    else:
        following = f"exec --spec{word} COMMAND" if word else "check"  # which compares the project of a spec
        messages.say(f"next: repro-env {following if shown.image == 'in the store' else f'rebuild{word}'}")
