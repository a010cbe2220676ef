"""What `repro-env rebuild` does with its options: the flow, then the image ID, alone on stdout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from repro_env.cli import say
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.build.interface import Plan
    from repro_env.flows.opened import Opened
    from repro_env.flows.rebuild import Rebuilt
    from repro_env.flows.send import Delivery
    from repro_env.store.store import Store


def run(
    *,
    spec: str | None = None,
    output: str | None = None,
    with_source: bool = False,
    frozen: bool = False,
    user: str | None = None,
    provenance: Path | None = None,
    builder: str = "direct",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    from repro_env.flows.opened import opened
    from repro_env.store.store import Store

    if builder not in ("direct", "docker"):
        raise UsageError("is not known", where=f"--builder {builder}", hint="name direct or docker")
    if output is None and (with_source or user is not None or provenance is not None):
        option = "--with-source" if with_source else "--provenance" if user is None else "--user"
        raise UsageError("goes with --output", where=option, hint=f"say where the image goes: {_forms()}")
    if frozen and not with_source:
        raise UsageError("goes with --with-source", where="--frozen", hint="leave it out: no code is sent")
    if builder == "docker" and (output is not None or dry_run):
        raise UsageError(
            "goes without --output and --dry-run: it makes the image in the engine",
            where="--builder docker",
            hint="leave it out: --output docker: sends the direct image into the engine, under the promised ID",
        )
    store = Store.open()
    found = opened(spec, Path.cwd(), store, say.say)
    if builder == "docker":
        _by_engine(found, store, json=json)
    elif output is not None:
        _send(
            found,
            store,
            output,
            with_source=with_source,
            frozen=frozen,
            user=user,
            provenance=provenance,
            dry_run=dry_run,
            json=json,
        )
    else:
        # What was opened from a file or a registry is nearest to no folder: the next command has to name it too.
        _unpack(found, store, word=spec if found.runs is not None else None, dry_run=dry_run, json=json)


def _unpack(found: Opened, store: Store, *, word: str | None, dry_run: bool, json: bool) -> None:
    from repro_env.flows.rebuild import rebuild

    done = rebuild(found.spec, found.folder, store=store, dry_run=dry_run, tell=say.say)
    if json:
        say.json_result(_facts(done, dry_run=dry_run))
    else:
        if dry_run:
            _show(done.plan)
        say.result(done.image_id)
        _hint(done, word, dry_run=dry_run)


def _hint(done: Rebuilt, word: str | None, *, dry_run: bool) -> None:
    todo = dry_run and done.plan is not None
    following = f"rebuild {word or ''}" if todo else f"exec {f'--spec {word} ' if word else ''}train.py"
    say.say(f"next: repro-env {following}".rstrip())


def _send(
    found: Opened,
    store: Store,
    output: str,
    *,
    with_source: bool,
    frozen: bool,
    user: str | None,
    provenance: Path | None,
    dry_run: bool,
    json: bool,
) -> None:
    from repro_env.flows import outputs
    from repro_env.flows.send import send

    done = send(
        found.spec,
        found.folder,
        outputs.parse(output),
        store=store,
        tell=say.say,
        here=Path.cwd(),
        dry_run=dry_run,
        source=with_source,
        frozen=frozen,
        user=user,
        provenance=provenance,
    )
    if json:
        say.json_result(_delivered(done, dry_run=dry_run))
        return
    if dry_run:
        _show(done.plan)
        say.result(done.image_id)
        return
    if done.image_id != done.environment_id:
        options = " and ".join(filter(None, ("--with-source" if with_source else "", "--user" if user is not None else "")))
        say.say(
            f"the image ID is not the environment's own, because of {options}; the environment's own is {done.environment_id}"
        )
    manifest = f", manifest {done.manifest_digest}" if done.manifest_digest else ""
    say.say(f"{len(done.made)} of {len(done.layers)} layers made ({say.size(done.sent)})")
    say.say(f"the image is at {done.where}{manifest}")
    say.result(done.image_id)


def _by_engine(found: Opened, store: Store, *, json: bool) -> None:
    from repro_env.flows.docker import built

    done = built(found.spec, found.folder, store=store, tell=say.say)
    if json:
        say.json_result(
            {
                "image_id": done.image_id,
                "environment_image_id": done.promised,
                "spec_digest": found.spec.digest,
                "builder": done.builder,
                "engine": done.engine,
                "name": done.name,
                "paths": done.paths,
            }
        )
    else:
        say.result(done.image_id)
    say.say(f"next: docker run --rm -it {done.name} python")


def _forms() -> str:
    from repro_env.flows.outputs import FORMS

    return FORMS


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
        "items": _items(plan),
    }


def _delivered(done: Delivery, *, dry_run: bool) -> dict[str, object]:
    """The object that `--json` prints with `--output`; its keys are a contract."""
    plan = done.plan
    return {
        "image_id": done.image_id,
        "environment_image_id": done.environment_id,
        "spec_digest": done.spec_digest,
        "manifest_digest": done.manifest_digest,
        "where": done.where,
        "layers": list(done.layers),
        "made": list(done.made),
        "changed": bool(done.made) and not dry_run,
        "fetched": done.fetched,
        "sent": done.sent,
        "fetch": plan.fetch if plan else 0,
        "items": _items(plan),
    }


def _items(plan: Plan | None) -> list[dict[str, object]]:
    return [
        {"what": item.what, "origin": item.origin, "where": item.where, "size": item.size}
        for item in (plan.items if plan else ())
    ]


def _show(plan: Plan | None) -> None:
    if plan is None:
        say.say.warn("the image is there: nothing would be done")
        return
    for item in plan.items:
        where = f"  {item.where}" if item.where else ""
        say.say.warn(f"{item.what:<32} {item.origin:<8} {say.size(item.size):>10}{where}")
