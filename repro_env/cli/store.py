"""`repro-env store`: usage, gc, verify."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli import say
from repro_env.cli.options import JsonOption
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.flows.store import Collected, Usage, Verified

KEEP_DAYS = 30.0
_WORDS = {
    "blob": "wheels and archives",
    "bytecode": "bytecode",
    "damaged": "damaged, still in a run",
    "fact": "facts",
    "image": "images",
    "layer": "layers and source trees",
    "links": "trees of links",
    "spec": "specs from files or registries",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def add(app: typer.Typer) -> None:
    below = typer.Typer(help=commands.COMMANDS["store"], no_args_is_help=True)
    below.command(name="usage", help="What lies in the store, by kind and by image.")(usage)
    below.command(name="gc", help="Remove what was not used for long. What a run or a build uses stays.")(gc)
    below.command(name="verify", help="Read every byte of the store, and name what is damaged.")(verify)
    app.add_typer(below, name="store")


def usage(json: JsonOption = False) -> None:
    from repro_env.flows import store as story
    from repro_env.store.store import Store

    found = story.usage(Store.open())
    if json:
        say.json_result(_usage_facts(found))
        return
    say.result(f"{found.root}  {say.size(found.size)}")
    rows = [(_WORDS[kind], f"{count:,}", say.size(size)) for kind, (count, size) in sorted(found.kinds.items())]
    say.result(say.table([*rows, ("hashes, marks, locks", "", say.size(found.other))], header=("KIND", "COUNT", "SIZE")))
    if found.images:
        images = [
            (
                one.image_id.removeprefix("sha256:")[:12],
                _when(one.used),
                f"{one.layers}",
                say.size(one.own),
                say.size(one.shared),
                "running" if one.running else "",
            )
            for one in found.images
        ]
        say.result("")
        say.result(say.table(images, header=("IMAGE", "LAST USED (UTC)", "LAYERS", "OWN", "SHARED", "")))
    say.say("next: repro-env store gc --dry-run")


def gc(
    keep_days: Annotated[
        float | None,
        typer.Option(
            help=f"Remove what was not used for so many days. Default: {KEEP_DAYS:.0f}, or none with --max-size.",
            metavar="DAYS",
            min=0,
            show_default=False,
        ),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            help="Remove the least recently used until the store is no larger: 20GB, 500MB, 1.5TiB.",
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows import store as story
    from repro_env.store.store import Store

    most = None if max_size is None else parsed(max_size)
    days = KEEP_DAYS if keep_days is None and most is None else keep_days
    done = story.collect(Store.open(), keep_days=days, max_size=most, dry_run=dry_run, tell=say.say)
    if json:
        say.json_result(_collected_facts(done))
        return
    for line in _collected(done, most):
        say.result(line)
    say.say("next: repro-env store gc" if dry_run else "next: repro-env store usage")


def verify(
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove what is damaged: the next command that needs it fetches or makes it again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.flows import store as story
    from repro_env.store.store import Store

    done = story.verify(Store.open(), repair=repair, tell=say.say)
    if json:
        say.json_result(_verified_facts(done))
    else:
        for one in done.damaged:
            say.result(f"damaged  {one.kind:<8}  {one.name}")
        say.result(f"{done.checked:,} read, {len(done.damaged)} damaged" + (", removed" if done.damaged and repair else ""))
        if done.damaged:
            say.say("next: repro-env rebuild" if repair else "next: repro-env store verify --repair")
    raise typer.Exit(1 if done.damaged and not repair else 0)


def parsed(text: str, option: str = "--max-size") -> int:
    """Bytes. Raises `UsageError`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError("is no size", where=f"{option} {text}", hint="say 20GB, 500MB or 1.5TiB")
    number, unit, binary = found.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " "))


def _collected(done: Collected, most: int | None) -> list[str]:
    counts: dict[str, tuple[int, int]] = {}
    for one in done.things:
        count, size = counts.get(one.kind, (0, 0))
        counts[one.kind] = (count + 1, size + one.size)
    verb = "would remove" if done.dry_run else "removed"
    lines = [f"{verb}  {_WORDS[kind]}: {count:,}, {say.size(size)}" for kind, (count, size) in sorted(counts.items())]
    left = done.before - done.freed
    lines.append(f"{say.size(done.freed)} of {say.size(done.before)}" if lines else "nothing to remove")
    if most is not None and left > most:
        lines.append(f"{say.size(left)} are left: in use, the source of a recorded run, or facts")
    return lines


def _usage_facts(found: Usage) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    return {
        "root": found.root,
        "size": found.size,
        "kinds": {kind: {"count": count, "size": size} for kind, (count, size) in found.kinds.items()},
        "other": found.other,
        "unbound": found.unbound,
        "images": [
            {
                "image_id": one.image_id,
                "spec_digest": one.spec or None,
                "used": _when(one.used).replace(" ", "T") + "Z",
                "layers": one.layers,
                "own": one.own,
                "shared": one.shared,
                "running": one.running,
            }
            for one in found.images
        ],
    }


def _collected_facts(done: Collected) -> dict[str, object]:
    return {
        "dry_run": done.dry_run,
        "before": done.before,
        "freed": done.freed,
        "things": [{"kind": one.kind, "name": one.name, "size": one.size} for one in done.things],
    }


def _verified_facts(done: Verified) -> dict[str, object]:
    return {
        "checked": done.checked,
        "damaged": [{"kind": one.kind, "name": one.name, "size": one.size} for one in done.damaged],
        "repaired": done.repaired,
    }


def _when(seconds: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
