"""The command `repro-env rebuild --output`: send the image of a spec to an output, without unpacking it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec

from repro_env.compare.environments import code
from repro_env.delivery.builder.build import Plan
from repro_env.delivery.targets import argument
from repro_env.delivery.targets.argument import Target
from repro_env.environment.secrets import bundles
from repro_env.oci.paths import is_below
from repro_env.schema.errors import UsageError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.argument import SpecName, current_directory, open_spec
from repro_env.store.store import Store

_NO_USER = 2**32 - 1
"""This ID is not a user (it means "no change" to `chown`)."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `send`."""

    image_id: str
    """ID of the sent image. It is the spec's, unless the image has the source too or starts as another user than root."""
    environment_image_id: str
    """ID of the spec's image."""
    spec_digest: str
    manifest_digest: str
    """Empty in a dry run."""
    where: str
    """The output, as it is printed; empty in a dry run."""
    layers: tuple[str, ...]
    """Diff IDs, lowest first."""
    made: tuple[str, ...] = ()
    """Diff IDs of the layers that were built and sent."""
    plan: Plan | None = None
    """The plan, in a dry run."""
    fetched: int = 0
    sent: int = 0
    """Bytes."""


def send(
    spec: SpecName,
    target: Target,
    *,
    dry_run: bool = False,
    source: bool = False,
    frozen: bool = False,
    user: str | None = None,
    here: Path | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> Delivery:
    """Send the image of a spec to an output.

    `source`: add the captured code as the last layer; with `frozen` even if the code next to the spec differs. `user`: `UID` or
    `UID:GID` that the image starts as, default root. `dry_run`: change nothing. `here`: the directory that relative paths start
    from, by default the current directory. Raises `UsageError`, `SourceError`, and as `delivery.builder.sinks.send` and the
    outputs do.
    """
    here, store = here or current_directory(), store or Store.open()
    opened = open_spec(spec, here, store, tell)
    done = Delivery(
        image_id=opened.spec.expected.image_id,
        environment_image_id=opened.spec.expected.image_id,
        spec_digest=opened.spec.digest,
        manifest_digest="",
        where="",
        layers=tuple(layer.diff_id for layer in opened.spec.expected.layers),
    )
    if user is not None and not _is_user(user):
        raise UsageError(
            f"must be a numeric user ID above 0, alone or with a group ID (got {user!r})",
            where="--user",
            hint="for example 1000, or 1000:1000",
        )
    if source:
        code.check_unchanged(opened.spec, opened.directory, frozen=frozen, store=store)
    if target.kind == "registry":
        bundles.check_files(opened.directory)
    if not source:
        for note in remarks(opened.spec):
            tell(note)
    from repro_env.delivery.builder import build, sinks  # slow to import

    with argument.open_output(target, opened.spec, store, here=here) as output:
        if dry_run:
            sink = sinks.OutputSink(output, opened.spec, opened.directory, store)
            planned = build.Build(opened.spec, opened.directory, store, sink, source="layer" if source else None)
            return msgspec.structs.replace(done, plan=planned.plan(ask=True))
        sent = sinks.send(opened.spec, opened.directory, store, output, tell=tell, source=source, user=user or "")
    if not sent.made:
        tell(f"nothing to send: the output already has all {len(sent.layers)} layers")
    return msgspec.structs.replace(
        done,
        image_id=sent.image_id,
        manifest_digest=sent.image.manifest_blob.digest,
        where=sent.where,
        layers=tuple(layer.diff_id for layer in sent.layers),
        made=sent.made,
        fetched=sent.fetched,
        sent=sent.sent,
    )


def remarks(spec: Spec) -> Iterator[str]:
    """Yield what a user must know who starts a container from the image without the source, one line at a time."""
    source, identity = spec.observed.source, spec.identity
    if source is None:
        return
    layouts = (identity.layout, *identity.other_layouts)
    editable = [unquote(item.direct_url.removeprefix("file://")) for item in spec.observed.distributions if item.editable]
    for path in (*spec.observed.startup.sys_path, *editable):
        if is_below(path, source.path) and not any(is_below(path, layout.prefix) for layout in layouts):
            yield (
                f"note: Python imports code from {path}, which is not in the image: "
                f"add --with-source, or mount the project at {source.path}"
            )
            break
    for layout in layouts:
        if layout.in_place and is_below(layout.prefix, source.path):
            yield (
                f"note: the image has its environment at {layout.prefix}: "
                f"do not mount the project at {source.path}, because that hides the environment"
            )
            break


def _is_user(text: str) -> bool:
    """Whether the user in an image config passes the check of Kubernetes that it is not root (`runAsNonRoot`)."""
    match = re.fullmatch(r"([1-9][0-9]{0,9})(?::([0-9]{1,10}))?", text)
    return match is not None and all(int(number) < _NO_USER for number in match.groups("0"))
