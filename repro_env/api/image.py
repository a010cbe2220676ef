"""The command `repro-env image verify`: recompute every digest, size and path that an image states, from its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from repro_env.compare.environments.difference import NotCompared
from repro_env.compare.image import Report, Work
from repro_env.io import machine
from repro_env.oci import manifestreader as manifests
from repro_env.registry import reference
from repro_env.schema.errors import ArtifactError, SpecError, UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.specs import argument as opening
from repro_env.store import imagefile
from repro_env.store.imagefile import ImageBlob, ImageFile, Listing
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store

_ARCHIVES = ("oci:", "docker-archive:", "oci-archive:")
"""Prefixes of image formats, as `--output` and other tools write them."""


class Verified(msgspec.Struct, frozen=True):
    reports: tuple[Report, ...]
    """One report per image."""
    others: tuple[NotCompared, ...]
    """Images and files in the same place that were not verified."""
    spec: str
    """Directory of the spec that the images were compared with; empty without a spec."""

    @property
    def good(self) -> bool:
        return bool(self.reports) and all(report.good for report in self.reports)


def verify_image(word: str, given: str | None, here: Path, *, store: Store, tell: Tell) -> Verified:
    """Verify the images that `word` (a directory, a file or a reference) names.

    `given`: the spec to compare with; default: the nearest spec, if the image's label has its digest. Raises `ArtifactError` if
    no image can be read or repro-env did not build it, `UsageError` if `word` names nothing, `NetworkError`.
    """
    given_spec = None
    if given is not None:
        opened = opening.open_spec(given, here, store, tell)
        given_spec = opened.spec, opened.directory
    reports: list[Report] = []
    directory = ""
    with ExitStack() as stack:
        listing = _listing(word, here, stack)
        for image, docker, alone in _pairs(listing):
            work = Work(image)
            spec = given_spec or _nearest(work.label, here)
            directory = directory or (str(spec[1]) if spec is not None else "")
            reports.append(work.check(spec, store, tell, docker=docker, alone=alone))
    return Verified(
        reports=tuple(reports),
        others=tuple(
            NotCompared(what=what, why="only images that were named, and that are for this machine, are verified")
            for what in listing.others
        ),
        spec=directory,
    )


def _listing(word: str, here: Path, stack: ExitStack) -> Listing:
    architecture = machine.platform().architecture
    name = next((word.removeprefix(start) for start in _ARCHIVES if word.startswith(start)), word)
    if (here / name).exists():
        return imagefile.listing(stack.enter_context(imagefile.open_image(here / name)), architecture=architecture)
    directory, _, tag = name.rpartition(":")
    if name != word and directory and (here / directory).exists():
        listing = imagefile.listing(stack.enter_context(imagefile.open_image(here / directory)), architecture=architecture)
        images = tuple(image for image in listing.images if image.name == tag)
        others = tuple(f"{image.name}: has another tag than {tag}" for image in listing.images if image.name != tag)
        return Listing(images=images, others=(*listing.others, *others), docker=() if others else listing.docker)
    if name != word or name.startswith((".", "/")) or not re.search("[/:@]", name):
        hint = "name a directory or file that holds an image, or an image in a registry"
        raise UsageError("this file or directory does not exist", where=name, hint=hint)
    ref = reference.parse(word)
    from repro_env.registry.client import Registry

    registry = Registry(ref.host)
    data, media_type, digest = registry.manifest(ref.repository, ref.tag_or_digest)
    manifest = manifests.parse(data, media_type, where=str(ref))
    other_manifests: tuple[str, ...] = ()
    size = len(data)
    if isinstance(manifest, manifests.Index):
        chosen = manifests.choose(manifest, architecture=architecture, where=str(ref))
        other_manifests = tuple(
            f"{row.digest[7:19]}: for {row.platform or 'no platform'}" for row in manifest.manifests if row is not chosen
        )
        size = chosen.size
        data, media_type, digest = registry.manifest(ref.repository, chosen.digest)

    def blob(descriptor: manifests.Descriptor) -> ImageBlob:
        return ImageBlob(
            name=descriptor.digest,
            digest=descriptor.digest,
            size=descriptor.size,
            media_type=descriptor.media_type,
            open=lambda: registry.blob(ref.repository, descriptor.digest, descriptor.size),
        )

    piece = ImageBlob(name=digest, digest=digest, size=size, media_type=media_type, open=lambda: iter((data,)))
    return Listing(images=(imagefile.image(piece, str(ref), blob),), others=other_manifests, docker=())


def _nearest(label: str, here: Path) -> tuple[Spec, Path] | None:
    """Return the nearest spec and its directory, if the image's label has its digest."""
    try:
        spec, directory = locate(None, here)
    except SpecError:
        return None
    return (spec, directory) if spec.digest == label else None


def _pairs(listing: Listing) -> Iterator[tuple[ImageFile, ImageFile | None, bool]]:
    """Yield each image, the same image in the archive's listing for `docker load`, and whether only that listing has it."""
    docker_images = {_config_digest(image): image for image in listing.docker}
    for image in listing.images:
        yield image, docker_images.pop(_config_digest(image), None), False
    for image in docker_images.values():
        yield image, None, True


def _config_digest(image: ImageFile) -> str:
    """Return the digest of the image's config, or the config's name if it cannot be read."""
    try:
        return manifests.digest_of(image.config.read())
    except ArtifactError:
        return image.config.name
