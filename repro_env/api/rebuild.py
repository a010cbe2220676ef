"""The command `repro-env rebuild`: build the image of a spec in the store, and check its image ID."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.delivery.builder import layers
from repro_env.io.files import free
from repro_env.oci import config
from repro_env.schema.errors import CommandMissingError, DiskError, RunError, SandboxError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.argument import SpecName, open_spec
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.builder.build import Plan


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `rebuild`, or its plan in a dry run."""

    image_id: str
    spec_digest: str
    layers: tuple[str, ...]
    """Diff IDs, lowest first. All are unpacked in the store, unless this was a dry run."""
    plan: Plan | None
    """None if the image was already in the store."""
    fetched: int = 0
    written: int = 0


def rebuild(spec: SpecName = None, *, dry_run: bool = False, store: Store | None = None, tell: Tell = SILENT) -> Rebuilt:
    """Build the image of a spec in the store, check that it is the captured image, and compile its modules.

    With `dry_run`, only ask the servers whether they have the files that a rebuild downloads, and change nothing.
    Raises `PlatformError`, `ArtifactError`, `NetworkError`, `DiskError`, `BuildError`.
    """
    store = store or Store.open()
    opened = open_spec(spec, store=store, tell=tell)
    layers.check_platform(opened.spec)
    diff_ids = tuple(layer.diff_id for layer in opened.spec.expected.layers)
    done = Rebuilt(image_id=opened.spec.expected.image_id, spec_digest=opened.spec.digest, layers=diff_ids, plan=None)
    if present(opened.spec, opened.directory, store):
        return done
    from repro_env.delivery.builder.build import WORKER_BYTES, Build
    from repro_env.delivery.builder.sinks import StoreSink
    from repro_env.runs.execution import bytecode
    from repro_env.runs.start.request import RunOptions

    build = Build(opened.spec, opened.directory, store, StoreSink(store), source="tree")
    plan = build.plan(ask=dry_run)
    tell(f"rebuilding: {_size(plan.fetch)} to download, {_size(plan.write)} to write and keep in {store.root}")
    needed, available = plan.fetch + plan.write, free(store.root)[0]
    if needed > available:
        hint = "free some disk space there, or set REPRO_ENV_STORE to a directory on another disk"
        what = f"the build needs {needed:,} bytes, but the disk has only {available:,} free"
        raise DiskError(what, where=str(store.root), hint=hint)
    if dry_run:
        return msgspec.structs.replace(done, plan=plan)
    with bytecode.compiling(opened.spec, store, tell) if plan.write >= WORKER_BYTES else nullcontext():
        build.run(plan, tell, "rebuilding")
    store.images.add((config.config(opened.spec.identity, diff_ids),))  # its digest is the image ID, which was checked before
    try:
        bytecode.of_image(opened.spec, RunOptions(), store=store, tell=tell)
    except (SandboxError, RunError, CommandMissingError) as error:
        tell.detail(f"the image's modules will be compiled before its first run: {error}")
    return msgspec.structs.replace(done, plan=plan, fetched=build.sources.received.total, written=build.written.total)


def present(spec: Spec, directory: Path, store: Store) -> bool:
    """Whether the store has the image, built from the same identity, and its source unless that is missing everywhere."""
    data = store.images.get(spec.expected.image_id)
    if data is None:
        return False
    # The store has only checked images, and an image's label names the identity that it was built from.
    image_config = msgspec.json.decode(data, type=config.ImageConfig)
    layers = [layer.diff_id for layer in spec.expected.layers]
    if image_config.label != spec.digest or image_config.diff_ids != layers:
        return False
    if any(store.layers.path(diff_id) is None for diff_id in layers):
        return False
    source = spec.observed.source
    if source is None or store.layers.path(source.tree.sha256) is not None:
        return True
    return SpecBlobs(directory / "blobs").path(source.tree.sha256) is None


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
