"""`repro-env store`: the commands usage and gc."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from repro_env.api import store as use_case
from repro_env.api.store import Collected, sum_by_kind
from repro_env.cli.ui import messages, page
from repro_env.cli.ui.options import DryRunOption, value
from repro_env.schema.errors import UsageError
from repro_env.store.store import Store

KEEP_DAYS = 30.0
_WORDS = {
    "blob": "wheels and archives",
    "damaged": "damaged, used by a run",
    "fact": "facts",
    "image": "images",
    "layer": "layers and source trees",
    "links": "link trees",
    "spec": "specs from bundle files or registries",
}
"""Kind of an entry -> its name in tables."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


group = typer.Typer(no_args_is_help=True)


@group.command()
def usage() -> None:
    """Show the disk usage of the store."""
    result = use_case.measure(Store.open())
    if messages.answer_in_json(result):
        return
    messages.result(f"{result.root}  {messages.size(result.size)}")
    rows = [(_WORDS[kind], f"{count:,}", messages.size(size)) for kind, (count, size) in result.kinds.items()]
    page.table([*rows, ("other files", "", messages.size(result.other))], header=("KIND", "COUNT", "SIZE")).print()
    messages.say("next: repro-env store gc --dry-run")


@group.command()
def gc(
    keep_days: Annotated[
        float | None,
        value(
            "DAYS",
            f"Remove entries that were not used for this number of days. Default: {KEEP_DAYS:.0f}; with --max-size, no limit.",
            min=0,
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        value("SIZE", "Remove the least recently used entries until the store has at most this size, for example 20GB."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Remove entries that were not used recently. Entries that a run or build is using are kept."""
    most = None if max_size is None else parse_size(max_size)
    days = KEEP_DAYS if keep_days is None and most is None else keep_days
    result = use_case.collect(Store.open(), keep_days=days, max_size=most, dry_run=dry_run, tell=messages.say)
    if messages.answer_in_json(result):
        return
    for line in _gc_lines(result, most):
        messages.result(line)
    messages.say("next: repro-env store gc" if dry_run else "next: repro-env store usage")


def parse_size(text: str, option: str = "--max-size") -> int:
    """The number of bytes. Raises `UsageError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'{option} must be a size (got "{text}")', hint="for example: 20GB, 500MB or 1.5TiB")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


def _gc_lines(result: Collected, most: int | None) -> list[str]:
    counts = sum_by_kind(result.items)
    verb = "would remove" if result.dry_run else "removed"
    lines = [f"{verb}  {_WORDS[kind]}: {count:,}, {messages.size(size)}" for kind, (count, size) in counts.items()]
    remaining = result.before - result.freed
    lines.append(f"{messages.size(result.freed)} of {messages.size(result.before)}" if lines else "nothing to remove")
    if most is not None and remaining > most:
        lines.append(f"{messages.size(remaining)} cannot be removed: entries in use, sources of recorded runs, and facts")
    return lines
