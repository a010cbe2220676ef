"""What `repro-env rebuild` does with its options: the flow, then the image ID, alone on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from repro_env.cli import say
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.flows.rebuild import Rebuilt


def run(*, spec: str | None = None, builder: str = "direct", dry_run: bool = False, json: bool = False) -> None:
    from repro_env.flows.locate import locate
    from repro_env.flows.rebuild import rebuild
    from repro_env.store.store import Store

    if builder != "direct":
        raise UsageError("is not known", where=f"--builder {builder}", hint="this version builds with --builder direct")
    found, folder = locate(spec, Path.cwd())
    done = rebuild(found, folder, store=Store.open(), dry_run=dry_run, tell=say.say)
    if json:
        say.json_result(_facts(done, dry_run=dry_run))
    else:
        if dry_run:
            _show(done)
        say.result(done.image_id)
    say.say("next: repro-env rebuild" if dry_run else "next: repro-env exec train.py")


def _facts(done: Rebuilt, *, dry_run: bool) -> dict[str, object]:
    """The object that `--json` prints; its keys are a contract."""
    plan = done.plan
    return {
        "image_id": done.image_id,
        "spec_digest": done.spec_digest,
        "layers": list(done.layers),
        "changed": plan is not None and not dry_run,
        "fetch": plan.fetch if plan else 0,
        "write": plan.write if plan else 0,
        "files": plan.files if plan else 0,
        "exact": plan.exact if plan else True,
        "items": [
            {"what": item.what, "origin": item.origin, "where": item.where, "size": item.size}
            for item in (plan.items if plan else ())
        ],
    }


def _show(done: Rebuilt) -> None:
    if done.plan is None:
        say.say("the image is there: nothing would be done")
        return
    for item in done.plan.items:
        where = f"  {item.where}" if item.where else ""
        say.say(f"{item.what:<32} {item.origin:<8} {say.size(item.size):>10}{where}")
