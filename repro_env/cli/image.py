"""`repro-env image`: verify images that repro-env built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.api.image import Verified, verify_image
from repro_env.cli.ui import messages
from repro_env.cli.ui.differences import SHOWN
from repro_env.cli.ui.options import AllOption, SpecOption, argument
from repro_env.cli.ui.page import Page
from repro_env.store.store import Store

group = typer.Typer(no_args_is_help=True)


@group.command()
def verify(
    image: Annotated[str, argument("IMAGE", "An OCI layout, archive of `docker save`, docker:NAME, or image in a registry.")],
    spec: SpecOption = None,
    all_: AllOption = False,
) -> None:
    """Verify that an image is intact and matches its spec.

    Every blob is read, and all digests and diff IDs are recomputed. The image is neither unpacked nor run.

    The spec is that of --spec, or the nearest repro/spec.json if the image's label names it.

    Exit code 0: the image is intact, and that of the spec. 1: there is a mismatch, or no spec to compare with.
    """
    result = verify_image(image, spec, Path.cwd(), store=Store.open(), tell=messages.say)
    if not messages.answer_in_json(result):
        _print(result, all_=all_)
    raise typer.Exit(0 if result.good else 1)


def _print(result: Verified, *, all_: bool) -> None:
    page = Page(most=None if all_ else SHOWN)
    for report in result.reports:
        page.heading(report.name)
        page.row("image ID", report.image_id)
        page.row("manifest", report.manifest)
        page.row("spec", report.spec + (f" ({result.spec})" if result.spec else ""))
        if report.good:
            page.verdict("intact", f"{report.layers} layers, {messages.size(report.bytes)}, all as in the spec", "green")
        elif report.mismatches:
            page.verdict("not intact", f"{len(report.mismatches):,} mismatch{'es' * (len(report.mismatches) != 1)}", "red")
        else:
            page.verdict("not verified", "the spec is neither here nor named; name the spec of the image with --spec", "red")
        page.table([(f"~ {mismatch.what}", mismatch.why) for mismatch in report.mismatches])
    page.print()
