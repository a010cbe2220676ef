"""The story of `repro-env rebuild`: what must be -> an image, whose ID says that it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.image import config
from repro_env.io import machine
from repro_env.model.errors import BuildError, PlatformError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.store.carried import Carried
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.build.interface import Builder, Plan


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild did, or would do."""

    image_id: str
    spec_digest: str
    layers: tuple[str, ...]
    """Diff IDs, lowest first: each is unpacked in the store, unless this was a dry run."""
    plan: Plan | None
    """None when nothing had to be done."""
    fetched: int = 0
    written: int = 0


def rebuild(
    spec: Spec,
    folder: Path,
    *,
    store: Store,
    dry_run: bool,
    tell: Tell,
    builder: Callable[[Spec, Path, Store], Builder] | None = None,
) -> Rebuilt:
    """Make the image of a spec in the store, and prove that it is the one that was captured.

    `folder` holds the spec. With `dry_run` nothing is changed and the servers are asked whether they have what
    they would have to give. Raises `PlatformError`, `ArtifactError`, `NetworkError`, `DiskError`, `BuildError`.
    """
    check_platform(spec)
    layers = tuple(one.diff_id for one in spec.expected.layers)
    done = Rebuilt(image_id=spec.expected.image_id, spec_digest=spec.digest, layers=layers, plan=None)
    if present(spec, folder, store):
        return done
    from repro_env.build import room
    from repro_env.build.direct import Direct

    maker = (builder or Direct)(spec, folder, store)
    plan = maker.plan(ask=dry_run)
    tell(_announcement(plan, store))
    room.enough(store.root, plan.write, plan.files)
    if dry_run:
        return msgspec.structs.replace(done, plan=plan)
    for item in plan.items:
        if item.origin == "nowhere":
            tell(f"note: the captured {item.what} is not beside the spec; runs can use a live one")
    built = maker.build(tell)
    _keep(spec, built.diff_ids, store)
    return msgspec.structs.replace(done, plan=plan, fetched=built.fetched, written=built.written)


def present(spec: Spec, folder: Path, store: Store) -> bool:
    """Whether the store holds this very image, made from this very identity, and its source if that is to be had."""
    data = store.images.get(spec.expected.image_id)
    if data is None:
        return False
    # Only a proven build is put there, and its label names the identity that it was built from.
    made = msgspec.json.decode(data, type=_Config)
    layers = [one.diff_id for one in spec.expected.layers]
    if made.config.Labels.get(config.LABEL) != spec.digest or made.rootfs.diff_ids != layers:
        return False
    if any(store.layers.path(diff_id) is None for diff_id in layers):
        return False
    source = spec.observed.source
    if source is None or store.layers.path(source.tree.sha256) is not None:
        return True
    return Carried(folder / "blobs").path(source.tree.sha256) is None


def check_platform(spec: Spec) -> None:
    """Raises `PlatformError` when this machine cannot run the image."""
    wanted, here = spec.identity.platform, machine.platform()
    if here != wanted:
        raise PlatformError(
            f"the spec is for {wanted.architecture}, and this is {here.architecture}",
            where="this machine",
            hint=f"rebuild on a machine that is {wanted.architecture}, or capture here",
        )


def _keep(spec: Spec, diff_ids: tuple[str, ...], store: Store) -> None:
    """Compute the image's ID from what was made, compare, and only then say that the image is there."""
    for one, got in zip(spec.expected.layers, diff_ids, strict=True):
        if one.diff_id != got:
            raise BuildError(
                f"the {one.kind} layer is {got}, not the expected {one.diff_id}",
                where=", ".join(one.holds[:3]) or one.kind,
                hint="capture again, or rebuild with the version of repro-env that captured",
            )
    data = config.config(spec.identity, diff_ids)
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
        f"rebuilding: {_size(plan.fetch)} to fetch, {least}{_size(plan.write)} in {plan.files:,} files to write "
        f"and keep in {store.root}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"


class _Labels(msgspec.Struct):
    Labels: dict[str, str] = {}


class _Rootfs(msgspec.Struct):
    diff_ids: list[str]


class _Config(msgspec.Struct):
    config: _Labels
    rootfs: _Rootfs
