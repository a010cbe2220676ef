"""The story of `repro-env rebuild --output`: what must be -> an image where it is wanted, and nothing unpacked on the way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec

from repro_env.build.interface import Plan
from repro_env.build.proven import Sent, recall
from repro_env.flows import code, egress, outputs
from repro_env.flows.outputs import Target
from repro_env.flows.rebuild import Rebuilt, rebuild
from repro_env.image import layout
from repro_env.image.output import Output
from repro_env.io.files import atomic_write
from repro_env.model.errors import UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.store.store import Store

_NO_USER = 2**32 - 1
"""The ID that no user can have."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the image."""

    image_id: str
    """Of what was sent. The spec's, unless it holds the source too or starts as another user than root."""
    environment_id: str
    """The spec's."""
    spec_digest: str
    manifest_digest: str
    """Empty in a dry run, and for what has no manifest (`squashfs:`)."""
    where: str
    """For people; empty in a dry run."""
    layers: tuple[str, ...]
    """Diff IDs, lowest first."""
    made: tuple[str, ...] = ()
    """Those of them that had to be made and sent."""
    plan: Plan | None = None
    """Of a dry run."""
    fetched: int = 0
    sent: int = 0
    """Bytes."""


def send(
    spec: Spec,
    folder: Path,
    target: Target,
    *,
    store: Store,
    tell: Tell,
    here: Path,
    dry_run: bool = False,
    source: bool = False,
    frozen: bool = False,
    user: str | None = None,
    provenance: Path | None = None,
) -> Delivery:
    """Send the image of a spec. `folder` holds the spec; `here`: what the paths of the command line are relative to.

    `source`: with the captured code as last layer; with `frozen` also where the code beside the spec differs. `user`: `UID` or `UID:GID` that it starts as, default root. `provenance`: a file for the statement of what the image was made of.
    With `dry_run` nothing is changed. Raises `UsageError`, `SourceError`, and as `build.packing.pack` and the outputs do.
    """
    if target.kind == "squashfs":
        if source or user is not None or provenance is not None:
            raise UsageError(
                "does not go with squashfs:",
                where="--with-source, --user, --provenance",
                hint="use oci: or docker-archive: for these",
            )
        return _squashed(spec, folder, target, store=store, tell=tell, here=here, dry_run=dry_run)
    if user is not None and not _is_user(user):
        raise UsageError(
            f"must be a numeric user ID above 0, alone or with a group ID (got {user!r})",
            where="--user",
            hint="for example 1000, or 1000:1000",
        )
    if source:
        code.check_left_out(spec, folder, frozen=frozen, store=store)
    if target.kind == "registry":
        egress.check(spec, folder, store=store)
    layers = tuple(one.diff_id for one in spec.expected.layers)
    done = Delivery(
        image_id=spec.expected.image_id,
        environment_id=spec.expected.image_id,
        spec_digest=spec.digest,
        manifest_digest="",
        where="",
        layers=layers,
    )
    if not source:
        for note in notes(spec):
            tell(note)
    with outputs.opened(target, spec, folder, store, here=here, dry_run=dry_run) as output:
        there = None if source or not target.local else _there(spec, folder, store, output, user=user or "")
        if dry_run:
            plan = _plan(spec, folder, store, output, source=source) if there is None else None
            return msgspec.structs.replace(done, plan=plan)
        sent = (
            there(output)
            if there is not None
            else _sent(spec, folder, store, output, source=source, user=user or "", local=target.local, tell=tell)
        )
    if not sent.made:
        tell(f"nothing to send: all {len(sent.layers)} layers are there, {_CHECKED[target.kind]}")
    if provenance is not None:
        _vouch(spec, sent, here / provenance, target)
    return msgspec.structs.replace(
        done,
        image_id=sent.image_id,
        manifest_digest=sent.image.manifest_blob.digest,
        where=sent.where,
        layers=tuple(one.diff_id for one in sent.layers),
        made=sent.made,
        fetched=sent.fetched,
        sent=sent.sent,
    )


def notes(spec: Spec) -> Iterator[str]:
    """What whoever starts a container from the image without the source has to know, a line each."""
    source, identity = spec.observed.source, spec.identity
    if source is None:
        return
    places = (identity.layout, *identity.others)
    editable = [unquote(one.direct_url.removeprefix("file://")) for one in spec.observed.distributions if one.editable]
    imported = [
        path
        for path in (*spec.observed.startup.sys_path, *editable)
        if _within(path, source.path) and not any(_within(path, place.prefix) for place in places)
    ]
    if imported:
        yield (
            f"note: Python imports code from {imported[0]}, and the image does not hold it: "
            f"add --with-source, or mount the project at {source.path}"
        )
    hidden = [place.prefix for place in places if place.in_place and _within(place.prefix, source.path)]
    if hidden:
        yield f"note: the image holds its environment at {hidden[0]}: do not mount the project at {source.path}, that hides it"
    if spec.observed.home:
        yield (
            f"note: the captured library configuration ({', '.join(spec.observed.home[:3])}) is used in a container "
            f"if it is started with HOME={layout.HOME}"
        )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _is_user(text: str) -> bool:
    """Whether an image config can name it so that Kubernetes sees that it is not root (`runAsNonRoot`)."""
    found = re.fullmatch(r"([1-9][0-9]{0,9})(?::([0-9]{1,10}))?", text)
    return found is not None and all(int(number) < _NO_USER for number in found.groups("0"))


def _there(spec: Spec, folder: Path, store: Store, output: Output, *, user: str) -> Callable[[Output], Sent] | None:
    """How to name the image, when all of it was proven before and is there."""
    known = recall(spec, folder, store, user=user)
    if known is None or not all(output.has(one) for one in known[0].layers):
        return None
    image, layers = known
    return lambda output: Sent(image=image, layers=layers, where=output.finish(image), made=(), fetched=0, sent=0)


def _sent(spec: Spec, folder: Path, store: Store, output: Output, *, source: bool, user: str, local: bool, tell: Tell) -> Sent:
    from repro_env.build.packing import Packing  # takes long to import

    return Packing(spec, folder, store, output, source=source, user=user, local=local).run(tell)


def _plan(spec: Spec, folder: Path, store: Store, output: Output, *, source: bool) -> Plan:
    from repro_env.build.packing import Packing

    return Packing(spec, folder, store, output, source=source).plan(ask=True)


_CHECKED = {
    "oci": "each the very file that was hashed before, or hashed now",
    "docker-archive": "in the very file that was written before",
    "docker": "by the engine's word",
    "registry": "by the registry's word for each digest",
}
"""How it is known that a layer is there."""


def _vouch(spec: Spec, sent: Sent, path: Path, target: Target) -> None:
    from repro_env.render.provenance import Facts, render

    name = target.place if target.kind in ("registry", "docker") else target.name
    try:
        atomic_write(path, render(spec, sent.image, Facts(name=name)))
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path), hint="name another file") from None


def _squashed(spec: Spec, folder: Path, target: Target, *, store: Store, tell: Tell, here: Path, dry_run: bool) -> Delivery:
    """A file system image has the unpacked layers in it, so they are made first."""
    from repro_env.output import squashfs

    path = here / target.place
    built: Rebuilt = rebuild(spec, folder, store=store, dry_run=dry_run, tell=tell)
    done = Delivery(
        image_id=built.image_id,
        environment_id=built.image_id,
        spec_digest=built.spec_digest,
        manifest_digest="",
        where="",
        layers=built.layers,
        plan=built.plan if dry_run else None,
        fetched=built.fetched,
        sent=built.written,
    )
    if dry_run:
        return done
    trees = [tree for diff_id in built.layers if (tree := store.layers.path(diff_id)) is not None]
    with tell.progress(0, f"writing {path.name}"):
        where = squashfs.write(trees, path)
    return msgspec.structs.replace(done, where=where, made=built.layers)
