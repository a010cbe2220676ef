"""`repro-env image`: look into images, whoever made them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption

if TYPE_CHECKING:
    from repro_env.cli.page import Page
    from repro_env.flows.image import Verified
    from repro_env.verify.image import Report

_VERIFY = """\
Recompute all that an image says of itself, and list what is not so.

IMAGE is a folder or archive in the OCI layout, an archive of `docker save`, or the name of an image in a registry, made
by repro-env or any other tool. Every blob is read: digests and sizes, diff IDs, the config, and each file that a
distribution's RECORD lists. Nothing is unpacked and nothing runs.

With a spec, every file is compared with it too; the nearest repro/spec.json is taken when the image's label names it.

Exit code 0: all that was compared is as it is said to be. 1: it is not, or something could not be read.
"""


def add(app: typer.Typer) -> None:
    below = typer.Typer(help=commands.COMMANDS["image"], no_args_is_help=True)
    below.callback()(_group)
    below.command(name="verify", help=_VERIFY, short_help="Recompute all that an image says of itself.")(verify)
    app.add_typer(below, name="image")


def _group() -> None:
    """So that `verify` is a word of its own: Typer would run the only command of a group without it."""


def verify(
    image: Annotated[str, typer.Argument(help="A folder, an archive, or a registry's image.", metavar="IMAGE")],
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec",
            help="The spec that it should be made of: its folder, a packed FILE, or a registry's REF.",
            metavar="SPEC",
            show_default=False,
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Show every mismatch, however many there are.")] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows.image import verify_image
    from repro_env.store.store import Store

    found = verify_image(image, spec, Path.cwd(), store=Store.open(), tell=say.say)
    if json:
        say.json_result(_facts(found))
    else:
        _tell(found, all_=all_)
    raise typer.Exit(0 if found.good else 1)


def _facts(found: Verified) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    return {
        "good": found.good,
        "spec": found.spec,
        "images": [
            {
                "name": one.name,
                "good": one.good,
                "image_id": one.image_id,
                "manifest": one.manifest,
                "spec_digest": one.spec,
                "layers": one.layers,
                "bytes": one.bytes,
                "files": one.files,
                "distributions": one.distributions,
                "compared_with_spec": one.expected,
                "mismatches": [
                    {"part": two.part, "what": two.what, "of": two.of, "why": two.why, "captured": two.captured}
                    for two in one.mismatches
                ],
                "not_compared": [{"what": two.what, "why": two.why} for two in one.not_compared],
            }
            for one in found.reports
        ],
        "not_compared": [{"what": one.what, "why": one.why} for one in found.others],
    }


def _tell(found: Verified, *, all_: bool) -> None:
    from repro_env.cli.difference import SHOWN
    from repro_env.cli.page import Page

    page = Page.of_stdout(most=None if all_ else SHOWN)
    for one in found.reports:
        page.heading(one.name)
        _show(page, one, found.spec)
    if found.others:
        page.heading("not looked into")
        page.table([(f"? {one.what}",) for one in found.others], "--all shows them")
    if not found.reports:
        page.verdict("nothing compared", "there is no image for this machine", "red")
    page.print()


def _show(page: Page, one: Report, spec: str) -> None:
    page.row("image ID", one.image_id)
    page.row("manifest", one.manifest)
    page.row("spec", one.spec + (f" ({spec})" if spec and one.spec else ""))
    wrong = [two for two in one.mismatches if not two.captured]
    if one.good:
        compared = f"{one.layers} layers, {say.size(one.bytes)}, {one.files:,} files, {one.distributions} distributions by RECORD"
        page.verdict("as it says", compared + (", and all as the spec has it" if one.expected is not None else ""), "green")
    elif wrong:
        page.verdict("not as it says", f"{len(wrong):,} mismatch{'es' * (len(wrong) != 1)}", "red")
    else:
        page.verdict("cannot be told", "not all of it could be compared", "red")
    page.table([(f"~ {two.what}{f' [{two.of}]' if two.of else ''}", two.why) for two in wrong], "--all shows them")
    if known := [two for two in one.mismatches if two.captured]:
        page.heading("so it was captured")
        page.table([(f"{two.what}{f' [{two.of}]' if two.of else ''}", two.why) for two in known], "--all shows them")
    if one.not_compared:
        page.heading("not compared")
        page.table([(f"? {two.what}: {two.why}",) for two in one.not_compared], "--all shows them")
