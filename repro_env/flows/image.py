"""The story of `repro-env image verify`: everything that an image says of itself, recomputed from its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from repro_env.flows import opened as opening
from repro_env.flows.imagecheck import Work
from repro_env.flows.locate import locate
from repro_env.image import record
from repro_env.io import machine
from repro_env.model.errors import ArtifactError, SpecError, UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.registry import manifest as manifests
from repro_env.registry import reference
from repro_env.store import imagefile
from repro_env.store.imagefile import ImageFile, Listing, Piece
from repro_env.store.store import Store
from repro_env.verify import image as verify
from repro_env.verify.difference import NotCompared
from repro_env.verify.image import Report

_ARCHIVES = ("oci:", "docker-archive:", "oci-archive:")
"""As `--output` and other tools name them."""


class Verified(msgspec.Struct, frozen=True):
    reports: tuple[Report, ...]
    """One for each image."""
    others: tuple[NotCompared, ...]
    """What is there and was not looked into."""
    spec: str
    """Where the spec lies that they were compared with; empty without one."""

    @property
    def good(self) -> bool:
        return bool(self.reports) and all(report.good for report in self.reports)


def verify_image(word: str, given: str | None, here: Path, *, store: Store, tell: Tell) -> Verified:
    """`word`: a folder, file or reference; `given`: the spec to compare with, else the nearest one if the image is made of it.

    Raises `ArtifactError` for what holds no image that can be read, `UsageError` for what is none, `NetworkError`.
    """
    wanted = None
    if given is not None:
        named = opening.opened(given, here, store, tell)
        wanted = named.spec, named.folder
    with ExitStack() as opened:
        found = _listing(word, here, opened)
        reports = [
            _checked(one, wanted or _nearest(one, here), store, tell, docker=again, alone=alone)
            for one, again, alone in _paired(found)
        ]
    used = {where for _, where in reports if where}
    return Verified(
        reports=tuple(report for report, _ in reports),
        others=tuple(
            NotCompared(what=what, why="only the images that are named, and for this machine, are looked into")
            for what in found.others
        ),
        spec=next(iter(used), ""),
    )


def _listing(word: str, here: Path, opened: ExitStack) -> Listing:
    architecture = machine.platform().architecture
    name = next((word.removeprefix(start) for start in _ARCHIVES if word.startswith(start)), word)
    if (here / name).exists():
        return imagefile.listing(opened.enter_context(imagefile.opened(here / name)), architecture=architecture)
    folder, _, tag = name.rpartition(":")
    if name != word and folder and (here / folder).exists():
        found = imagefile.listing(opened.enter_context(imagefile.opened(here / folder)), architecture=architecture)
        images = tuple(one for one in found.images if one.name == tag)
        rest = tuple(f"{one.name}: not the one that was named" for one in found.images if one.name != tag)
        return Listing(images=images, others=(*found.others, *rest), docker=() if rest else found.docker)
    if name != word or name.startswith((".", "/")) or not re.search("[/:@]", name):
        raise UsageError("is not there", where=name, hint="name a folder or file that holds an image, or a registry's image")
    ref = reference.parse(word)
    from repro_env.registry.client import Registry

    registry = Registry(ref.host)
    data, media_type, digest = registry.manifest(ref.repository, ref.named)
    read = manifests.parse(data, media_type, where=str(ref))
    others: tuple[str, ...] = ()
    size = len(data)
    if isinstance(read, manifests.Index):
        chosen = manifests.choose(read, architecture=architecture, where=str(ref))
        others = tuple(f"{one.digest[7:19]}: for {one.platform or 'no platform'}" for one in read.manifests if one is not chosen)
        size = chosen.size
        data, media_type, digest = registry.manifest(ref.repository, chosen.digest)

    def blob(one: manifests.Descriptor) -> Piece:
        return Piece(
            name=one.digest,
            digest=one.digest,
            size=one.size,
            media_type=one.media_type,
            open=lambda: registry.blob(ref.repository, one.digest, one.size),
        )

    piece = Piece(name=digest, digest=digest, size=size, media_type=media_type, open=lambda: iter((data,)))
    return Listing(images=(imagefile.image(piece, str(ref), blob),), others=others, docker=())


def _nearest(one: ImageFile, here: Path) -> tuple[Spec, Path] | None:
    """The nearest spec, if the image says that it is made of it."""
    try:
        spec, folder = locate(None, here)
        return (spec, folder) if spec.digest in one.config.read().decode("utf-8", "replace") else None
    except (SpecError, ArtifactError):
        return None


def _paired(found: Listing) -> Iterator[tuple[ImageFile, ImageFile | None, bool]]:
    """Each image of an archive once, and what the part for `docker load` says of it; last those that only that part names."""
    configs = {_config(one): one for one in found.docker}
    for one in found.images:
        yield one, configs.pop(_config(one), None), False
    for one in configs.values():
        yield one, None, True


def _config(one: ImageFile) -> str:
    """The digest of its config; what it is named by when that cannot be read."""
    try:
        return manifests.digest_of(one.config.read())
    except ArtifactError:
        return one.config.name


def _checked(
    one: ImageFile, spec: tuple[Spec, Path] | None, store: Store, tell: Tell, *, docker: ImageFile | None, alone: bool
) -> tuple[Report, str]:
    work = Work(one)
    total = sum(max(piece.size, 0) for piece in one.layers)
    with tell.progress(total, f"reading {one.name}") as advance:
        scanned = [work.layer(number, piece, advance) for number, piece in enumerate(one.layers)]
    work.other_listing(docker, alone=alone)
    tree = work.tree(scanned)
    found: dict[str, list[record.Row]] = work.records(scanned, tree)
    work.wrong += verify.records(tree, found)
    work.unseen += verify.unrecorded(tree, found)
    compared = None
    if spec is not None:
        compared = work.against(spec, tree, store)
    else:
        work.without_spec(scanned, tree)
    return (
        Report(
            name=one.name,
            image_id=work.image_id,
            manifest=work.manifest_digest,
            spec=work.label,
            layers=sum(layer is not None for layer in scanned),
            bytes=sum(layer.size for layer in scanned if layer is not None),
            files=sum(entry.kind == "file" for entry in tree.values()),
            distributions=len(found),
            expected=compared,
            mismatches=tuple(work.wrong),
            not_compared=tuple(work.unseen),
        ),
        str(spec[1]) if spec is not None else "",
    )
