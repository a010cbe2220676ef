"""`repro-env store`: the commands usage, gc and verify."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import DryRunOption, JsonOption, value
from repro_env.schema.errors import UsageError

if TYPE_CHECKING:
    from repro_env.api.store import Collected

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


def add(app: typer.Typer) -> None:
    group = typer.Typer(help=commands.COMMANDS["store"], no_args_is_help=True)
    group.command(name="usage", help="Show the disk usage of the store, by kind and by image.")(usage)
    group.command(name="gc", help="Remove entries that were not used recently. Entries that a run or build is using are kept.")(
        gc
    )
    group.command(name="verify", help="Read the complete store, and list damaged files. Exit code 1 if a file is damaged.")(
        verify
    )
    app.add_typer(group, name="store")


def usage(json: JsonOption = False) -> None:
    from repro_env.api import store as use_case
    from repro_env.store.store import Store

    result = use_case.measure(Store.open())
    if json:
        messages.json_result(result)
        return
    messages.result(f"{result.root}  {messages.size(result.size)}")
    rows = [(_WORDS[kind], f"{count:,}", messages.size(size)) for kind, (count, size) in sorted(result.kinds.items())]
    messages.result(messages.table([*rows, ("other files", "", messages.size(result.other))], header=("KIND", "COUNT", "SIZE")))
    if result.images:
        images = [
            (
                image.image_id.removeprefix("sha256:")[:12],
                _format_time(image.used),
                f"{image.layers}",
                messages.size(image.own),
                messages.size(image.shared),
                "running" if image.running else "",
            )
            for image in result.images
        ]
        messages.result("")
        messages.result(messages.table(images, header=("IMAGE", "LAST USED (UTC)", "LAYERS", "OWN", "SHARED", "")))
    messages.say("next: repro-env store gc --dry-run")


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
        value(
            "SIZE", "Remove the least recently used entries until the store has at most this size, for example 20GB or 1.5TiB."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    from repro_env.api import store as use_case
    from repro_env.store.store import Store

    most = None if max_size is None else parse_size(max_size)
    days = KEEP_DAYS if keep_days is None and most is None else keep_days
    result = use_case.collect(Store.open(), keep_days=days, max_size=most, dry_run=dry_run, tell=messages.say)
    if json:
        messages.json_result(result)
        return
    for line in _gc_lines(result, most):
        messages.result(line)
    messages.say("next: repro-env store gc" if dry_run else "next: repro-env store usage")


def verify(
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged files. Later commands download or build them again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.api import store as use_case
    from repro_env.store.store import Store

    result = use_case.verify(Store.open(), repair=repair, tell=messages.say)
    if json:
        messages.json_result(result)
    else:
        for entry in result.damaged:
            messages.result(f"damaged  {entry.kind:<8}  {entry.name}")
        removed = " and removed" if result.damaged and repair else ""
        messages.result(f"{result.checked:,} entries read, {len(result.damaged)} damaged{removed}")
        if result.damaged:
            messages.say("next: repro-env rebuild" if repair else "next: repro-env store verify --repair")
    raise typer.Exit(1 if result.damaged and not repair else 0)


def parse_size(text: str, option: str = "--max-size") -> int:
    """The number of bytes. Raises `UsageError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f'{option} must be a size (got "{text}")', hint="for example: 20GB, 500MB or 1.5TiB")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


def _gc_lines(result: Collected, most: int | None) -> list[str]:
    counts: dict[str, tuple[int, int]] = {}
    for entry in result.things:
        count, size = counts.get(entry.kind, (0, 0))
        counts[entry.kind] = (count + 1, size + entry.size)
    verb = "would remove" if result.dry_run else "removed"
    lines = [f"{verb}  {_WORDS[kind]}: {count:,}, {messages.size(size)}" for kind, (count, size) in sorted(counts.items())]
    remaining = result.before - result.freed
    lines.append(f"{messages.size(result.freed)} of {messages.size(result.before)}" if lines else "nothing to remove")
    if most is not None and remaining > most:
        lines.append(f"{messages.size(remaining)} cannot be removed: entries in use, sources of recorded runs, and facts")
    return lines


def _format_time(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
