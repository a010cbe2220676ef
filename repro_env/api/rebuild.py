"""The command `repro-env rebuild`: build the image of a spec in the store, and check its image ID."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.delivery.builder import consistency
from repro_env.oci import config
from repro_env.schema.errors import BuildError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.builder.plan import Plan


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


def rebuild(spec: Spec, directory: Path, *, store: Store, dry_run: bool, tell: Tell) -> Rebuilt:
    """Build the image of a spec in the store, and check that it is the captured image.

    `directory` is the spec's directory. With `dry_run`, only ask the servers whether they have the files that a rebuild
    downloads, and change nothing. Raises `PlatformError`, `ArtifactError`, `NetworkError`, `DiskError`, `BuildError`.
    """
    consistency.check_platform(spec)
    layers = tuple(layer.diff_id for layer in spec.expected.layers)
    done = Rebuilt(image_id=spec.expected.image_id, spec_digest=spec.digest, layers=layers, plan=None)
    if present(spec, directory, store):
        return done
    from repro_env.delivery.builder import diskspace
    from repro_env.delivery.builder.storebuild import StoreBuild

    build = StoreBuild(spec, directory, store)
    plan = build.plan(ask=dry_run)
    tell(_announcement(plan, store))
    diskspace.check_free_space(store.root, plan.write, plan.files)
    if dry_run:
        return msgspec.structs.replace(done, plan=plan)
    for item in plan.items:
        if item.origin == "nowhere":
            tell(f"note: the captured {item.what} is not next to the spec; runs can use a live directory")
    built = build.build(tell)
    _keep(spec, store)
    return msgspec.structs.replace(done, plan=plan, fetched=built.fetched, written=built.written)


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


def _keep(spec: Spec, store: Store) -> None:
    """Add the image to the store. Raises `BuildError` if its layers give another image ID."""
    data = config.config(spec.identity, [layer.diff_id for layer in spec.expected.layers])
    image_id = "sha256:" + hashlib.sha256(data).hexdigest()
    if image_id != spec.expected.image_id:
        raise BuildError(
            f"the image is {image_id}, not the expected {spec.expected.image_id}",
            where="expected",
            hint="the spec was edited or damaged; restore it or capture again",
        )
    store.images.put(data)


def _announcement(plan: Plan, store: Store) -> str:
    least = "" if plan.exact else "at least "
    return (
        f"rebuilding: {_size(plan.fetch)} to download, {least}{_size(plan.write)} in {plan.files:,} files to write "
        f"and keep in {store.root}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
