"""`repro-env lineage`: show which run made a file, from what, and which runs used it."""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Annotated

import typer

from repro_env.api.lineage import lineage
from repro_env.cli.ui import lineagepage, messages
from repro_env.cli.ui.options import AllOption, HtmlOption, argument, parse_path, value
from repro_env.cli.ui.page import save


def command(
    what: Annotated[
        str,
        argument(
            "FILE|SHA256|ID",
            "A file, for example weights; the directory of a checkpoint; at least 8 digits of a SHA-256; or the ID or "
            "directory of a run.",
        ),
    ],
    runs: Annotated[Path | None, value("DIR", "Also search this directory of runs.", parser=parse_path)] = None,
    all_: AllOption = False,
    html: HtmlOption = None,
) -> None:
    """Show which run made a file and which runs used it.

    Files are identified by their SHA-256. All directories of runs that were used on this machine are searched.

    Exit code 0: the run was found. 1: no known run made the file.
    """
    answer = lineage(what, runs=runs, tell=messages.say)
    spec = None if answer.spec is None else {"directory": answer.spec.directory}
    show = functools.partial(lineagepage.show, answer)
    save(html, f"lineage of {what}", show, [f"repro-env lineage {shlex.quote(what)}"])
    if not messages.answer_in_json(answer, spec=spec):
        page = lineagepage.new(complete=all_)
        show(page)
        page.print()
        lineagepage.print_remarks(answer)
    if not answer.known:
        raise typer.Exit(1)
